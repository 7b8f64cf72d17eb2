"""Linear models whose nearest boundary is reached with some pixels at their bounds, and CW's κ: closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import DDN, FGSM, Bounds, CarliniWagner, DeepFool, assess
from calibrant.errors import InputError
from tests.attacks.conftest import Victim


def to_boundary(x: Tensor, w: Tensor, height: float, low: float, high: float) -> float:
    """min ‖δ‖ with w·δ = height and x + δ in the box: δ = clip(x + λw) − x, λ by bisection in float64."""

    def moved(factor: float) -> Tensor:
        return (x + factor * w).clamp(low, high) - x

    below, above = 0.0, 1.0
    while float(moved(above) @ w) < height:
        below, above = above, 2 * above
        if above > 1e9:
            return float("inf")  # every pixel at its bound, and still on this side
    for _ in range(80):
        middle = (below + above) / 2
        below, above = (middle, above) if float(moved(middle) @ w) < height else (below, middle)
    return float(moved(above).norm())


def nearest(model: nn.Linear, x: Tensor, bounds: Bounds, kappa: float = 0.0) -> Tensor:
    w, b, wide = model.weight.detach().double(), model.bias.detach().double(), x.double()
    logits = wide @ w.T + b
    out = []
    for row, z in zip(wide, logits, strict=True):
        r = int(z.argmax())
        others = [k for k in range(len(z)) if k != r]
        ways = (to_boundary(row, w[k] - w[r], float(z[r] - z[k]) + kappa, bounds.low, bounds.high) for k in others)
        out.append(min(ways))
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("attack", [DDN, CarliniWagner, DeepFool], ids=lambda a: a.__name__)
@pytest.mark.parametrize(("classes", "pixels"), [(2, 5), (3, 5), (5, 20), (10, 20), (10, 64)])
def test_the_nearest_point_inside_the_box(attack: type[DDN], classes: int, pixels: int) -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        model, x = nn.Linear(pixels, classes), torch.rand(40, pixels)
        exact = nearest(model, x, Bounds())
        result = attack(batch=40).run(model, x)
        reachable = exact.isfinite() & (exact > 1e-3)  # nearer ones are a matter of rounding
        assert bool(result.success[reachable].all())
        ratio = result.distance.double()[reachable] / exact[reachable]
        assert float(ratio.min()) > 0.999 and float(ratio.max()) < 1.002


@pytest.mark.parametrize("kappa", [0.5, 3.0])
def test_kappa_is_the_margin_of_what_is_handed_out(kappa: float) -> None:
    torch.manual_seed(0)
    model, x, bounds = nn.Linear(12, 4), torch.rand(30, 12), Bounds(-20, 20)
    result = CarliniWagner(kappa=kappa, bounds=bounds).run(model, x)
    own = model(x).argmax(-1)
    logits = model(result.adversarial).detach()
    others = logits.scatter(-1, own[:, None], -torch.inf).amax(-1)
    margin = others - logits.gather(-1, own[:, None]).squeeze(-1)
    assert bool(result.success.all())
    assert float(margin.min()) >= kappa and float(margin.max()) < kappa + 0.05
    torch.testing.assert_close(result.distance.double(), nearest(model, x, bounds, kappa), rtol=0.01, atol=0)


@pytest.mark.parametrize("kappa", [0.0, 1.0, 5.0])
def test_kappa_is_searched_for_not_only_judged_by(kappa: float, victim: Victim) -> None:
    """A network of several layers, towards targets, also its own class: what the search ends at has the margin."""
    x, attack = victim.x[:12], CarliniWagner(kappa=kappa, bounds=victim.bounds, iterations=200)
    own = victim.model(x).argmax(-1)
    for targets in ((own + 1) % 10, own):
        result = attack.run(victim.model, x, targets=targets)
        logits = victim.model(result.adversarial).detach()
        others = logits.scatter(-1, targets[:, None], -torch.inf).amax(-1)
        margin = logits.gather(-1, targets[:, None]).squeeze(-1) - others
        assert bool(result.success.all()) and float(margin.min()) >= kappa
        moved = margin[result.distance > 0]  # the others were as confident as that from the start
        assert bool((moved < kappa + 0.1).all())


def test_a_success_that_is_not_confident_enough_is_none() -> None:
    model, x = nn.Linear(3, 2), torch.full((4, 3), 0.5)
    torch.nn.init.eye_(model.weight)
    torch.nn.init.zeros_(model.bias)
    model.bias.data[0] = 0.1
    far = CarliniWagner(kappa=100.0, iterations=50).run(model, x)  # in the unit box the margin ends at 0.9
    assert not bool(far.success.any()) and bool(far.distance.isinf().all())
    assert bool(CarliniWagner(kappa=0.5, iterations=50).run(model, x).success.all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_accuracies_are_those_of_a_fresh_pass(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 6)).to(dtype)
    x, labels = torch.rand(200, 20).to(dtype), torch.randint(6, (200,))
    model[2].bias.data[:] = 0
    labels[:150] = model(x)[:150].argmax(-1)
    attack = FGSM(epsilon=0.03)
    strength = assess(model, attack, x, labels)
    clean = (model(x).argmax(-1) == labels).double()
    under = clean * (model(attack.run(model, x, labels=labels).adversarial).argmax(-1) == labels)
    assert strength.accuracy == pytest.approx(float(clean.mean()))
    assert strength.accuracy_under_attack == pytest.approx(float(under.mean()))
    assert strength.success_rate == pytest.approx(1 - float(under.mean() / clean.mean()))


def test_a_tie_is_right_or_wrong_as_the_prediction_has_it() -> None:
    model = nn.Linear(2, 2, bias=False)
    model.weight.data[:] = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # always a tie: the first class is predicted
    model.weight.data[1, 1] = 1e-3
    x = torch.tensor([[0.5, 0.0], [0.5, 0.0], [0.5, 0.0], [0.5, 0.5]])
    strength = assess(model, FGSM(epsilon=0.1), x, torch.tensor([1, 1, 0, 1]))
    assert strength.accuracy == 0.5


def test_bounds_of_an_attack_are_bounds() -> None:
    attack = DDN(bounds=(0, 1))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"bounds=\(0, 1\): an attack takes bounds=calibrant.attacks.Bounds"):
        attack(nn.Linear(3, 2), torch.rand(2, 3))
