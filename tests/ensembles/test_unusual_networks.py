"""PEP and MC dropout on unusual networks: attention, recurrence, parametrised weights, keyword inputs."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calibrant
from calibrant.ensembles import PEP, DeepEnsemble, MCDropout
from calibrant.ensembles.dropout_modules import dropouts, functional_dropouts
from calibrant.errors import CalibrantError, InputError, SplitError
from calibrant.functional.noise import member_seed

G = torch.Generator().manual_seed(0)
WORDS = torch.randint(0, 50, (32, 7), generator=G)
Y = torch.randint(0, 4, (32,), generator=G)
X = torch.randn(32, 12, generator=G)
IMAGES = torch.randn(32, 1, 6, 6, generator=G)


class Transformer(nn.Module):
    def __init__(self, p: float = 0.3) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=p, batch_first=True)
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 4)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=self.head(self.encoder(self.embed(x)).mean(1)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(8, 4)
        self.lstm = nn.LSTM(16, 8, 2, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x).transpose(0, 1))[0][-1])


class Functional(nn.Module):
    """A network with a functional dropout before a module. The dropout follows the mode, or is always on."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(12, 12), nn.Linear(12, 4), nn.Dropout(0.3)
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(F.dropout(self.first(x), 0.5, self.always or self.training)))


def naive(model: nn.Module, x: Tensor, members: int) -> Tensor:
    """Return members by a naive loop: modules that drop are in train mode, without fused kernels, one seed per
    member."""
    model.eval()
    for m in model.modules():
        if isinstance(m, (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.LSTM)):
            m.training = True
    out = []
    for j in range(members):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(member_seed(0, j))
            output = model(x)
        out.append(getattr(output, "logits", output).detach())
    model.eval()
    return torch.stack(out)


@pytest.mark.parametrize("network", [Transformer, Recurrent])
@pytest.mark.parametrize("together", [None, 3])
def test_dropout_inside_attention_and_recurrence_is_active(network: type[nn.Module], together: int | None) -> None:
    model = network().eval()
    expected = naive(model, WORDS, 3)
    assert (expected[0] - expected[1]).abs().max() > 1e-3
    ensemble = MCDropout(model, 3, together=together)
    torch.testing.assert_close(ensemble.members(WORDS), expected, atol=1e-6, rtol=1e-5)
    kept = ensemble.predict([(WORDS, Y)], keep_members=True)  # runs members one after the other over the loader
    torch.testing.assert_close(kept.logits, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(MCDropout(model, 1).members(WORDS), expected[:1], atol=1e-6, rtol=1e-5)


def test_dropout_in_recurrence_switches_cudnn_off_and_leaves_its_other_flags() -> None:
    """Also when convolutions and recurrent layers differ in TF32, which `torch.backends.cudnn.flags` refuses."""
    model, cudnn, seen = Recurrent().eval(), torch.backends.cudnn, []
    model.lstm.register_forward_pre_hook(lambda *_: seen.append((cudnn.enabled, cudnn.deterministic)))
    conv: Any = cudnn.conv
    before = cudnn.enabled, cudnn.deterministic, conv.fp32_precision
    try:
        cudnn.deterministic, conv.fp32_precision = True, "ieee"
        MCDropout(model, 2).members(WORDS)
        assert set(seen) == {(False, True)} and cudnn.enabled is before[0]
    finally:
        cudnn.enabled, cudnn.deterministic, conv.fp32_precision = before


def test_rate_zero_gives_the_transformer_itself() -> None:
    model = Transformer().eval()
    with torch.no_grad():
        assert torch.equal(MCDropout(model, 3, p=0.0).members(WORDS)[2], model(WORDS).logits)
    assert torch.backends.mha.get_fastpath_enabled()


def test_dropouts_of_other_libraries_use_the_override() -> None:
    class DropPath(nn.Module):
        drop_prob = 0.5

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, self.drop_prob, self.training)

    class LockedDropout(DropPath):
        pass

    model = nn.Sequential(nn.Linear(12, 8), DropPath(), LockedDropout(), nn.Linear(8, 4)).eval()
    assert set(dropouts(model)) == {"1", "2"}
    assert torch.equal(MCDropout(model, 3, p=0.0).members(X)[1], model(X))
    assert model[1].drop_prob == 0.5 and not torch.equal(*MCDropout(model, 2).members(X))

    class OpaqueDropout(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5, self.training)

    with pytest.raises(InputError, match=r"1 \(OpaqueDropout\)"):
        MCDropout(nn.Sequential(nn.Linear(12, 4), OpaqueDropout()), p=0.1)


@pytest.mark.parametrize("always", [False, True])
def test_functional_dropout_is_reported_once_and_never_shared_between_members(always: bool) -> None:
    model = Functional(always).eval()
    ensemble = MCDropout(model, 4)
    with pytest.warns(UserWarning, match="functional dropout 1 time"):
        members = ensemble.members(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensemble.members(X)
    assert torch.equal(members, naive(model, X, 4))


class Attention(nn.Module):
    """Attention that always drops, or only in training. `F.scaled_dot_product_attention` is told the rate."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 4)
        self.drop, self.always = nn.Dropout(0.2), always

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(x)).reshape(len(x), 7, 3, 2, 8).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5 if self.always or self.training else 0.0)
        return self.head(self.drop(out.transpose(1, 2).reshape(len(x), 7, 16).mean(1)))


@pytest.mark.parametrize("always", [True, False])
def test_functional_attention_with_dropout_is_reported(always: bool) -> None:
    model = Attention(always).eval()
    assert functional_dropouts(model, WORDS) == always
    with pytest.warns(UserWarning, match="functional dropout 1 time") if always else nullcontext():
        members = MCDropout(model, 4).members(WORDS)
    assert torch.equal(members, naive(model, WORDS, 4))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


NORMS = {
    "weight": nn.utils.parametrizations.weight_norm,
    "spectral": nn.utils.parametrizations.spectral_norm,
    "old spectral": nn.utils.spectral_norm,
}


@pytest.mark.parametrize("norm", NORMS)
def test_parametrised_convolutions_are_perturbed_and_restored(norm: str) -> None:
    model = nn.Sequential(
        NORMS[norm](nn.Conv2d(1, 4, 3)), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)
    ).train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    pep = PEP.fit(model, (IMAGES, Y))
    assert {n.split(".")[0] for n in pep.parameters} == {"0", "1"}  # and not the linear layer
    members = PEP(model, 0.1, 2).members(IMAGES)
    assert not torch.equal(members[0], members[1])
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in state.items())


def test_weights_too_coarse_for_the_noise_are_reported() -> None:
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)).bfloat16()
    with pytest.warns(UserWarning, match="of the bfloat16 weights change at σ = 1e-05"):
        PEP(model, 1e-5)
    pep = PEP.fit(model, (X.bfloat16(), Y), range=(1e-6, 2e-6))
    assert any("bfloat16 weights" in note for note in pep.certificate.notes)


def test_batches_of_keyword_inputs() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 4)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
            return {"logits": self.head((self.embed(input_ids) * attention_mask[..., None]).mean(1))}

    model, mask = Masked(), torch.ones(32, 7)
    batches = [
        {"input_ids": WORDS[i : i + 16], "attention_mask": mask[i : i + 16], "labels": Y[i : i + 16]} for i in (0, 16)
    ]
    pep = PEP.fit(model, batches)
    own = F.cross_entropy(model(WORDS, mask)["logits"].double(), Y).detach()
    assert math.isclose(pep.certificate.nll_at_zero, float(own), rel_tol=1e-5)
    whole = pep.predict(batches).logits
    by_name = pep(input_ids=WORDS, attention_mask=mask)
    assert whole.shape == (32, 4) and torch.equal(by_name, pep(WORDS, mask))
    torch.testing.assert_close(by_name, whole)
    torch.testing.assert_close(calibrant.predict(pep, batches).logits.double(), whole)
    assert pep.members(WORDS, attention_mask=mask).shape == (pep.size, 32, 4)


class OfLists(nn.Module):
    """Takes texts, or images of several sizes, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(1, 4)

    def forward(self, items: list[Any]) -> Tensor:
        sizes = [float(len(item) if isinstance(item, str) else item.sum()) for item in items]
        return self.head(self.drop(torch.tensor(sizes)[:, None]))


@pytest.mark.parametrize("items", [["a", "bc"], [torch.rand(3, 5, 5), torch.rand(3, 4, 6)]], ids=["texts", "images"])
def test_batches_that_are_lists(items: list[Any]) -> None:
    model = OfLists().eval()
    for ensemble in (PEP(model, 0.0, 3), MCDropout(model, 3, p=0.0), DeepEnsemble([model] * 3)):
        assert ensemble.members(items).shape == (3, 2, 4)
        torch.testing.assert_close(ensemble(items), torch.log_softmax(model(items).detach().double(), -1))


def test_an_autograd_graph_made_before_can_be_differentiated_after() -> None:
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    loss = F.cross_entropy(model(X), Y)
    PEP(model, 0.1)(X)
    loss.backward()
    expected = torch.autograd.grad(F.cross_entropy(model(X), Y), list(model.parameters()))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))


def test_data_set_behind_a_loader_marked_test() -> None:
    from torch.utils.data import DataLoader, Subset, TensorDataset

    data = TensorDataset(X, Y)
    data.split = "test"
    for marked in (data, Subset(data, range(8))):
        with pytest.raises(SplitError, match="marked test"):
            PEP.fit(nn.Linear(12, 4), DataLoader(marked, 8))


REFUSED: dict[str, tuple[Any, str]] = {
    "one-hot labels": ((X, F.one_hot(Y, 4)), r"shape \(32, 4\)"),
    "a column of labels": ((X, Y[:, None]), r"shape \(32, 1\)"),
    "probabilities": ((X, Y / 4), "not whole numbers"),
    "labels below zero": ((X, Y - 1), "start at -1, and the model has 4 classes"),
    "too many classes in the second batch": ([(X, Y), (X, Y + 7)], "reach 10 but the model has 4 classes"),
    "no items": ((X[:0], Y[:0]), "empty"),
    "predictions": (calibrant.predictions(X[:, :4], Y, split="calibration"), "Predictions, which holds no inputs"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_calibration_data_without_inputs_or_class_numbers(kind: str) -> None:
    data, says = REFUSED[kind]
    with pytest.raises(InputError, match=says):
        PEP.fit(nn.Linear(12, 4), data)


def test_arrays_work_like_tensors_and_functions_are_refused() -> None:
    model = nn.Linear(12, 4)
    arrays, tensors = (PEP.fit(model, pair) for pair in ((X.numpy(), Y.numpy()), (X, Y.float())))
    assert arrays.sigma == tensors.sigma
    for make in (lambda m: PEP(m, 0.1), MCDropout, lambda m: DeepEnsemble([model, m])):
        with pytest.raises(InputError, match="function is not a torch.nn.Module"):
            make(lambda x: x)


def test_members_with_different_numbers_of_classes_are_refused() -> None:
    both, batches = [nn.Linear(12, 4), nn.Linear(12, 5)], [(X, torch.zeros(32, dtype=torch.long))]
    for ask in (DeepEnsemble(both), DeepEnsemble(both).members):
        with pytest.raises(InputError, match="member 1 has 5 classes and member 0 has 4"):
            ask(X)
    with pytest.raises(InputError, match="member 1 has 5 classes and member 0 has 4"):
        DeepEnsemble(both).predict(batches)
    with pytest.raises(InputError, match="model 1 has 5 classes and model 0 has 4"):
        calibrant.predict(both, batches)
    with pytest.raises(CalibrantError, match="member 1: label in row 0 is 4"):  # member 0 accepts these labels
        DeepEnsemble(both[::-1]).predict([(X, torch.full((32,), 4))])
