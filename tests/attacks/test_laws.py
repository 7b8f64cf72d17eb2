"""Laws that hold for every attack of the table."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import ATTACKS, Attack, Bounds, CarliniWagner, DeepFool
from calibrant.errors import InputError
from tests.attacks.conftest import Victim

MINIMUM = [name for name, attack in ATTACKS.items() if attack.nearest]
BUDGET = [name for name, attack in ATTACKS.items() if not attack.nearest]
BUDGETS = (0.02, 0.05, 0.1, 0.2)


def make(name: str, bounds: Bounds, **settings: object) -> Attack:
    short: dict[str, object] = {"iterations": 30} if name == "cw" else {}
    return ATTACKS[name](bounds=bounds, **{**short, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ATTACKS)
def test_stays_in_bounds_and_successes_flip(name: str, victim: Victim) -> None:
    result = make(name, victim.bounds).run(victim.model, victim.x)
    pixel = result.adversarial * 0.4 + 0.3
    assert pixel.min() >= -1e-6 and pixel.max() <= 1 + 1e-6
    with torch.no_grad():  # item by item: another batch size than the attack's
        fresh = torch.cat([victim.model(row[None]) for row in result.adversarial]).argmax(-1)
        own = victim.model(victim.x).argmax(-1)
    assert bool((fresh != own)[result.success].all())
    assert bool(torch.isinf(result.distance[~result.success]).all())
    moved = (result.adversarial - victim.x) * 0.4
    measured = torch.linalg.vector_norm(moved.flatten(1), ATTACKS[name].norm if name != "pgd" else float("inf"), dim=1)
    torch.testing.assert_close(result.distance[result.success], measured[result.success], atol=1e-5, rtol=1e-4)
    called = make(name, victim.bounds)(victim.model, victim.x[:8])  # returns the inputs alone
    torch.testing.assert_close(called, result.adversarial[:8], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ATTACKS)
def test_restores_the_model_and_the_generators(name: str, victim: Victim) -> None:
    model = victim.model
    model.train()
    model[1].eval()  # modes differ by module
    next(model.parameters()).requires_grad_(False)
    (nn.functional.cross_entropy(model(victim.x), victim.y)).backward()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    flags, modes = [p.requires_grad for p in model.parameters()], [m.training for m in model.modules()]
    rng = torch.get_rng_state()

    def same() -> None:
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        for old, p in zip(grads, model.parameters(), strict=True):
            assert (old is None and p.grad is None) or (old is not None and torch.equal(old, p.grad))
        assert flags == [p.requires_grad for p in model.parameters()]
        assert modes == [m.training for m in model.modules()]
        assert torch.equal(rng, torch.get_rng_state())

    try:
        make(name, victim.bounds).run(model, victim.x[:10])
        same()
        hook = model[0].register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("stop")))
        with pytest.raises(RuntimeError, match="stop"):
            make(name, victim.bounds).run(model, victim.x[:10])
        hook.remove()
        same()
    finally:
        for p in model.parameters():
            p.requires_grad_(True)
            p.grad = None
        model.eval()


def test_cudnn_does_not_benchmark_shrinking_batches(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seen = set()
    with victim.model.register_forward_hook(lambda *_: seen.add(torch.backends.cudnn.benchmark)):
        make("ddn", victim.bounds).run(victim.model, victim.x[:8])
    assert seen == {False} and torch.backends.cudnn.benchmark


@pytest.mark.parametrize("name", BUDGET)
def test_a_larger_budget_never_lowers_success(name: str, victim: Victim) -> None:
    """Checked item by item; one step of the whole budget may pass through another class."""
    found = [
        make(name, victim.bounds, epsilon=e).run(victim.model, victim.x).success for e in (0.0, *BUDGETS, 0.4, 0.8)
    ]
    for less, more in itertools.pairwise(found):
        assert not bool((less & ~more).any())
    assert not bool(found[0].any()) and found[len(BUDGETS)].float().mean() > 0.1


@pytest.mark.parametrize("name", MINIMUM)
def test_more_steps_never_lower_success_and_all_succeed(name: str, victim: Victim) -> None:
    rates = [
        make(name, victim.bounds, iterations=n).run(victim.model, victim.x).success.float().mean().item()
        for n in (2, 8, 30)
    ]
    assert rates == sorted(rates) and rates[-1] == 1.0


@pytest.mark.parametrize("name", ATTACKS)
def test_the_result_of_an_item_does_not_depend_on_its_batch(name: str, victim: Victim) -> None:
    """An item has the same distance alone, in a batch, and at another position."""
    x = victim.x[:24]
    whole = make(name, victim.bounds).run(victim.model, x).distance
    alone = torch.cat([make(name, victim.bounds).run(victim.model, row[None]).distance for row in x[:2]])
    turned = make(name, victim.bounds, batch=14).run(victim.model, x.flip(0)).distance.flip(0)
    # Batches of other sizes round differently, and the bisection stops within 2⁻¹³. If the items of a batch shared one
    # search, as in cleverhans, distances would differ by up to 22%.
    torch.testing.assert_close(alone, whole[:2], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(turned, whole, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_constant_added_to_the_logits_changes_nothing(name: str, victim: Victim) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = victim.model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x) + 64.0

    plain = make(name, victim.bounds).run(victim.model, victim.x[:24])
    shifted = make(name, victim.bounds).run(Shifted(), victim.x[:24])
    assert torch.equal(plain.success, shifted.success)
    torch.testing.assert_close(plain.distance, shifted.distance, rtol=5e-3, atol=0)


class Lost(nn.Module):
    """The gradient of the branch that is not taken is NaN."""

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1)[:, :3]
        return torch.where(z < 9, z, z * torch.nan)


@pytest.mark.parametrize("name", MINIMUM)
def test_a_pixel_whose_gradient_is_nan_is_left_out(name: str, victim: Victim) -> None:
    result = make(name, victim.bounds).run(lambda x: victim.model(x) + Lost()(x).sum(-1, keepdim=True), victim.x[:8])
    assert bool(result.success.all()) and bool(result.adversarial.isfinite().all())


@pytest.mark.parametrize("name", ATTACKS)
def test_targets_are_reached_and_labels_are_left(name: str, victim: Victim) -> None:
    with torch.no_grad():
        own = victim.model(victim.x).argmax(-1)
    strong = {"epsilon": 0.4} if name in BUDGET else {}
    to = make(name, victim.bounds, **strong).run(victim.model, victim.x, targets=(own + 1) % 10)
    reached = victim.model(to.adversarial).argmax(-1) == (own + 1) % 10
    assert bool(reached[to.success].all())
    assert name in ("fgsm", "frequency_fgsm", "deepfool") or to.success.float().mean() > 0.5
    wrong = (own + 1) % 10
    away = make(name, victim.bounds).run(victim.model, victim.x[:4], labels=wrong[:4])
    assert bool(away.success.all())
    spent = name in BUDGET  # a budget is spent on every item; a misclassified item is its own nearest success
    assert bool(((away.distance > 0) == spent).all()) and bool(((away.calls > 0) == spent).all())


def test_gradient_evaluations_are_counted(victim: Victim) -> None:
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += torch.is_grad_enabled()

    hook = victim.model.register_forward_hook(count)
    result = DeepFool(bounds=victim.bounds, candidates=4, iterations=3).run(victim.model, victim.x[:8])
    hook.remove()
    assert calls == 3 and int(result.calls.min()) >= 4 and int(result.calls.max()) == 4 * 3  # four candidates per step
    assert int(make("fgsm", victim.bounds).run(victim.model, victim.x).calls.max()) == 1
    ddn = make("ddn", victim.bounds).run(victim.model, victim.x)
    assert bool((ddn.calls == 20).all())
    paper = CarliniWagner(bounds=victim.bounds)
    assert (paper.search_steps, paper.iterations, paper.lr) == (3, 500, 0.005)
    assert int(make("cw", victim.bounds).run(victim.model, victim.x[:4]).calls.max()) <= 3 * 30


def test_bad_input(victim: Victim) -> None:
    attack = ATTACKS["ddn"]
    with pytest.raises(InputError, match=r"outside the bounds \[0, 1\]"):
        attack().run(victim.model, victim.x)

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0 * x.flatten(1)[:, :3] + torch.tensor([2.0, 1.0, 0.0])

    for name in ATTACKS:
        few = {"iterations": 2} if name == "cw" else {}
        with pytest.raises(InputError, match="constant logits"):
            make(name, victim.bounds, **few).run(Constant(), victim.x[:4])
    with pytest.raises(InputError, match="without a gradient"):
        attack(bounds=victim.bounds).run(lambda x: torch.ones(len(x), 3) * torch.arange(3), victim.x)
    with pytest.raises(InputError, match="8 whole numbers"):
        attack(bounds=victim.bounds).run(victim.model, victim.x[:8], labels=victim.y[:8].to(torch.complex64))
    with pytest.raises(InputError, match="10 classes"):
        attack(bounds=victim.bounds).run(victim.model, victim.x, labels=victim.y + 10)
    with pytest.raises(InputError, match="real-valued"):
        attack().run(victim.model, victim.y)
    with pytest.raises(InputError, match="one of them"):
        attack(bounds=victim.bounds).run(victim.model, victim.x, labels=victim.y, targets=victim.y)
    with pytest.raises(InputError, match="zero or NaN everywhere"):
        make("cw", victim.bounds, iterations=2).run(Lost(), victim.x[:4])
    with pytest.raises(InputError, match="CUDA"):
        attack(bounds=victim.bounds, engine="graph").run(victim.model, victim.x)
