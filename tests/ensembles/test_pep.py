"""PEP §2–3.1: noise that is never stored, σ* by search, and a model that is never changed."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from calibrant.ensembles.pep import PEP
from calibrant.ensembles.sigma import sigma_curve
from calibrant.errors import FileError, InputError, MapError


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [t.clone() for t in model.state_dict().values()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_eq_8_as_a_loop_over_items_and_members(overfitted) -> None:
    x, y = (t[:20] for t in overfitted.calibration)
    pep = PEP(overfitted.model, 0.05, members=4, seed=3)
    p = [torch.softmax(z.double(), -1) for z in pep.members(x)]
    by_hand = sum(math.log(sum(float(p[j][i, y[i]]) for j in range(4)) / 4) for i in range(20)) / 20
    assert sigma_curve(pep, (x, y)).at(0.05).log_likelihood == pytest.approx(by_hand, abs=1e-6)


def test_the_search_and_the_predictor_have_separate_numbers_of_members(overfitted) -> None:
    """By default the search uses five members and the predictor twenty."""
    x = overfitted.test[0][:8]
    for given, members, searched in (({"members": 7, "search_members": 4}, 7, 4), ({}, 20, 5)):
        pep = PEP.fit(overfitted.model, overfitted.calibration, **given)
        assert pep.certificate is not None and pep.certificate.members == searched
        assert {len(point.members) for point in pep.certificate.curve if point.sigma} == {searched}
        assert pep.size == len(pep.members(x)) == members
    assert torch.equal(PEP(overfitted.model, pep.sigma)(x), pep(x))


def test_golden_section_searches_beyond_a_range_without_gain() -> None:
    from calibrant.ensembles.sigma_search import golden_section

    def likelihood(sigma: float) -> float:  # has an odd term, as from one draw of the noise, and a peak near 0.1
        return -0.02 * sigma + 20 * sigma**2 * math.exp(-((sigma / 0.1) ** 2))

    def at(sigma: float) -> SimpleNamespace:
        return SimpleNamespace(log_likelihood=likelihood(sigma))

    assert likelihood(5e-4) < 0 < likelihood(0.1)
    found = golden_section(SimpleNamespace(at=at), 5e-6, 5e-4, 0.032 * 10, 7)  # type: ignore[arg-type]
    best = max((s / 10000 for s in range(1, 3200)), key=likelihood)
    assert found.interior and found.best == pytest.approx(best, rel=0.05)


def test_golden_probes_are_those_of_the_papers_table_1() -> None:
    """The σ* of Table 1 (in 1e-3) are probes of 7 iterations on [5e-5, 5e-3]; VGG-19's 1.03 needs 9."""
    from calibrant.functional.search import golden

    for reported, iterations in ((1.94, 7), (2.90, 7), (2.60, 7), (1.84, 7), (1.03, 9)):
        found = golden(lambda s, peak=reported: -abs(s - peak * 1e-3), 5e-5, 5e-3, iterations)
        assert any(abs(x * 1e3 - reported) < 0.006 for x, _ in found.probes), (reported, found.probes)


def test_sigma_is_zero_if_noise_can_only_hurt() -> None:
    identity = nn.Linear(5, 5, bias=False)
    nn.init.eye_(identity.weight)
    x = 6 * torch.eye(5).repeat(40, 1)
    pep = PEP.fit(identity, (x, x.argmax(1)), range=(0.5, 5.0))
    assert pep.sigma == 0 and pep.certificate.nll == pep.certificate.nll_at_zero
    assert any("σ = 0" in note for note in pep.certificate.notes)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_weights_are_bit_identical_after_an_exception(overfitted, failure: type[BaseException]) -> None:
    before = weights(overfitted.model)

    def explode(*_: object) -> None:
        raise failure

    hook = overfitted.model[6].register_forward_hook(explode)
    try:
        with pytest.raises(failure):
            PEP(overfitted.model, 0.3)(overfitted.test[0][:4])
    finally:
        hook.remove()
    assert same(before, weights(overfitted.model))


def test_round_trip_repeats_predictions_bit_for_bit(overfitted, tmp_path: Path) -> None:
    pep = PEP.fit(overfitted.model, overfitted.calibration, where=lambda name, p: name.startswith("6"))
    again = PEP.load(pep.save(tmp_path / "pep"), overfitted.model)
    x = overfitted.test[0][:16]
    assert again.certificate == pep.certificate
    assert torch.equal(again.members(x), pep.members(x))
    header = tmp_path / "pep" / "ensemble.json"
    header.write_text(header.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(MapError, match="edited"):
        PEP.load(tmp_path / "pep", overfitted.model)
    header.unlink()
    header.symlink_to(pep.save(tmp_path / "other") / "ensemble.json")
    with pytest.raises(FileError, match="leads out of"):
        PEP.load(tmp_path / "pep", overfitted.model)


def test_shared_weights_are_perturbed_once_and_objects_with_logits_work() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.b(self.a(x)))

    pep = PEP(Tied(), 0.1, where="all")
    assert len(pep.parameters) == 1
    with pep.member(0):
        assert torch.equal(pep.model.a.weight, pep.model.b.weight)
    assert pep(torch.ones(3, 4)).shape == (3, 4)


def test_auto_perturbs_kernels_of_a_cnn_and_all_matrices_of_other_networks() -> None:
    from calibrant.nn import build

    resnet = PEP(build("resnet20", classes=10, in_channels=3), 0.1)
    assert all("fc" not in name for name in resnet.parameters) and resnet.share > 0.9
    layer = nn.TransformerEncoderLayer(16, 2, 32)
    transformer = nn.Sequential(nn.Conv2d(1, 16, 4, stride=4), layer, nn.Linear(16, 10))  # its convolution cuts patches
    for model in (transformer, nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))):
        pep = PEP(model, 0.1)
        assert set(pep.parameters) == {n for n, p in model.named_parameters() if p.ndim >= 2}
        matrices = sum(p.numel() for p in model.parameters() if p.ndim >= 2)
        expected = matrices / sum(p.numel() for p in model.parameters())
        assert pep.share == pytest.approx(expected) and pep.describe()["share"] == pep.share
        assert f"where=auto: {expected:.1%} of the weights" in repr(pep)
    assert PEP(transformer, 0.1, where="conv").share < 0.1  # convolutions alone are almost nothing


def test_uniform_noise_has_the_variance_of_the_gaussian_and_pairs_mirror_each_other() -> None:
    model, noise = nn.Linear(300, 300), []
    before = model.weight.detach().clone()
    for j in (0, 1):
        with PEP(model, 0.5, distribution="uniform", where="weights").member(j):
            noise.append(model.weight.detach() - before)
    assert noise[0].std().item() == pytest.approx(0.5, rel=0.02)
    assert noise[0].abs().max().item() <= 0.5 * math.sqrt(3) + 1e-6
    torch.testing.assert_close(noise[0], -noise[1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("distribution", ["gaussian", "uniform"])
def test_a_model_in_channels_last_has_the_same_members(distribution, dtype: torch.dtype) -> None:
    plain = nn.Conv2d(3, 8, 3).to(dtype)
    other = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    assert not other.weight.is_contiguous()
    for j in range(2):
        with PEP(plain, 0.5, 2, distribution).member(j), PEP(other, 0.5, 2, distribution).member(j):
            assert torch.equal(plain.weight, other.weight)
    assert not other.weight.is_contiguous()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": nn.ReLU()}, "no parameter matches"),
        ({"model": nn.LayerNorm(12)}, "where='auto'; the model's layers with parameters: LayerNorm"),
        ({"sigma": -1.0}, "sigma"),
        ({"sigma": math.nan}, "sigma"),
        ({"sigma": "0.1"}, "sigma='0.1'"),
        ({"distribution": "cauchy"}, "cauchy"),
        ({"where": "biases"}, "biases"),
        ({"members": 2.5}, "members=2.5 must be a whole number"),
    ],
)
def test_bad_settings_are_named(change: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        PEP(**{"model": nn.Linear(2, 2), "sigma": 0.1} | change)


@pytest.mark.parametrize(("name", "value"), [("range", 5e-3), ("range", (1e-3, math.inf)), ("iterations", 0)])
def test_bad_settings_of_the_search_are_named(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{name}=.* must be"):
        PEP.fit(nn.Linear(2, 2), (torch.ones(4, 2), torch.zeros(4, dtype=torch.long)), **{name: value})


def test_a_probe_that_is_not_finite_is_rejected_and_counted(overfitted) -> None:
    class Fragile(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.reference = inner[0].weight.detach().clone()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            moved = (self.inner[0].weight - self.reference).std()
            return self.inner(x) / (moved < 0.1)  # infinite beyond σ = 0.1

    pep = PEP.fit(Fragile(overfitted.model), overfitted.calibration, range=(0.01, 4.0))
    assert pep.certificate is not None and pep.certificate.rejected > 0
    assert 0 < pep.sigma < 0.2
    assert any("rejected" in note for note in pep.certificate.notes)


def test_a_model_with_infinite_outputs_is_an_error() -> None:
    model = nn.Linear(4, 3)
    nn.init.constant_(model.weight, math.inf)
    with pytest.raises(InputError, match="own outputs are not finite"):
        PEP.fit(model, (torch.ones(9, 4), torch.arange(9) % 3))


def test_bracketing_searches_beyond_a_range_without_gain() -> None:
    """L falls a little before it rises, so the sign of the gain near zero tells nothing about the peak."""
    from calibrant.ensembles import sigma_search as module

    class Fake:
        labels, ensemble = torch.zeros(2000), PEP(nn.Linear(2, 2), 0.0, 5)
        passes = rejected = 0

        def __init__(self) -> None:
            self.seen: dict[float, object] = {}

        def rough(self, share: float, members: int) -> Fake:
            return self

        def at(self, sigma: float) -> SimpleNamespace:
            self.passes += 1
            return SimpleNamespace(
                log_likelihood=-1e-4 * sigma + 0.1 * math.exp(-(math.log((sigma + 1e-9) / 0.1) ** 2))
            )

    first, _ = module.first_guess(Fake(), 5e-5, 5e-3, 0.32)  # type: ignore[arg-type]
    assert first == pytest.approx(0.1, rel=0.3)
