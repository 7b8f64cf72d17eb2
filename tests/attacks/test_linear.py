"""Linear networks, whose distances have a closed form: with and without pixels at the bounds, and with CW's κ."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import ATTACKS, Bounds, CarliniWagner
from tests.attacks.conftest import Victim

MINIMUM = [name for name, attack in ATTACKS.items() if attack.nearest]


def to_boundary(x: Tensor, w: Tensor, height: float, low: float, high: float) -> float:
    """min ‖δ‖ with w·δ = height and x + δ in the box: δ = clip(x + λw) − x, λ by bisection in float64."""

    def moved(factor: float) -> Tensor:
        return (x + factor * w).clamp(low, high) - x

    below, above = 0.0, 1.0
    while float(moved(above) @ w) < height:
        below, above = above, 2 * above
        if above > 1e9:
            return float("inf")  # every pixel is at its bound, before the boundary
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


def linear(size: int, classes: int, seed: int = 0) -> nn.Linear:
    """Classes of equal steepness and orthogonal directions, so that the likeliest other class is the nearest."""
    g = torch.Generator().manual_seed(seed)
    model = nn.Linear(size, classes)
    with torch.no_grad():
        model.weight.copy_(3 * torch.linalg.qr(torch.randn(size, classes, generator=g)).Q.T)
        model.bias.copy_(0.3 * torch.randn(classes, generator=g))
    return model


@pytest.mark.parametrize("name", MINIMUM)
@pytest.mark.parametrize(("classes", "box"), [(2, (-1, 2)), (5, (-1, 2)), (2, (0, 1)), (10, (0, 1))])
def test_distance_is_the_closed_form(name: str, classes: int, box: tuple[float, float]) -> None:
    """The distance is within 2% if the bounds do not matter. In [0, 1], half of the pixels are at a bound."""
    g, model = torch.Generator().manual_seed(3), linear(60, classes)
    x = torch.rand(12, 60, generator=g)
    if box == (0, 1):
        x = (2 * x - 0.5).clamp(0, 1)
    exact = nearest(model, x, Bounds(*box))
    result = ATTACKS[name](bounds=Bounds(*box)).run(model, x)
    assert bool(result.success.all())
    ratio = result.distance.double() / exact
    assert float(ratio.min()) > 0.999
    assert float(ratio.max()) < (1.02 if box == (-1, 2) or name != "deepfool" else 1.1)  # DeepFool ignores the bounds


def test_kappa_is_the_margin_of_what_is_returned() -> None:
    kappa = 3.0
    torch.manual_seed(0)
    model, x, bounds = linear(12, 4), torch.rand(30, 12), Bounds(-3, 4)
    result = CarliniWagner(kappa=kappa, bounds=bounds).run(model, x)
    own = model(x).argmax(-1)
    logits = model(result.adversarial).detach()
    others = logits.scatter(-1, own[:, None], -torch.inf).amax(-1)
    margin = others - logits.gather(-1, own[:, None]).squeeze(-1)
    assert bool(result.success.all())
    assert float(margin.min()) >= kappa and float(margin.max()) < kappa + 0.01
    torch.testing.assert_close(result.distance.double(), nearest(model, x, bounds, kappa), rtol=0.02, atol=0)


def test_kappa_holds_towards_targets(victim: Victim) -> None:
    """A network of several layers; the targets include the item's own class."""
    kappa = 5.0
    x, attack = victim.x[:6], CarliniWagner(kappa=kappa, bounds=victim.bounds, iterations=60)
    own = victim.model(x).argmax(-1)
    for targets in ((own + 1) % 10, own):
        result = attack.run(victim.model, x, targets=targets)
        logits = victim.model(result.adversarial).detach()
        others = logits.scatter(-1, targets[:, None], -torch.inf).amax(-1)
        margin = logits.gather(-1, targets[:, None]).squeeze(-1) - others
        assert bool(result.success.all()) and float(margin.min()) >= kappa
        assert bool((margin[result.distance > 0] < kappa + 0.1).all())


def test_a_success_that_is_not_confident_enough_does_not_count() -> None:
    model, x = nn.Linear(3, 2), torch.full((4, 3), 0.5)
    torch.nn.init.eye_(model.weight)
    torch.nn.init.zeros_(model.bias)
    model.bias.data[0] = 0.1
    far = CarliniWagner(kappa=100.0, iterations=5).run(model, x)  # in the unit box the margin is 0.9 at most
    assert not bool(far.success.any()) and bool(far.distance.isinf().all())
    assert bool(CarliniWagner(kappa=0.5, iterations=50).run(model, x).success.all())


@pytest.mark.parametrize("name", MINIMUM)
@pytest.mark.parametrize("reference", [{}, {"labels": torch.ones(1).long()}, {"targets": torch.zeros(1).long()}])
def test_a_tie_is_broken_by_a_short_step(name: str, reference: dict[str, Tensor]) -> None:
    """Equal logits are not a success, and the model has a gradient there."""
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -1.0, 2.0], [-1.0, 1.0, 2.0]]))
    result = ATTACKS[name]().run(model, torch.tensor([[0.5, 0.5, 0.3]]), **reference)
    assert bool(result.success) and 0 < float(result.distance) < 1e-5


@pytest.mark.parametrize("name", MINIMUM)
def test_an_input_almost_at_the_boundary_still_flips(name: str) -> None:
    """The margin is below the possible rounding error, and the attack moves as far as needed."""
    model, x = linear(30, 3), 0.3 + 0.4 * torch.rand(12, 30, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for _ in range(2):  # move to the nearest boundary, up to a millionth of the logits
            z, w = model(x), model.weight
            own, other = z.topk(2, -1).indices.T
            normal = w[own] - w[other]
            height = (z.gather(1, own[:, None]) - z.gather(1, other[:, None])).squeeze(1)
            x = x - ((height - 1e-6) / normal.square().sum(1))[:, None] * normal
    result = ATTACKS[name]().run(model, x)
    assert bool(result.success.all()) and bool((result.distance < 1e-4).all())
    with torch.no_grad():
        label = torch.cat([model(row[None]) for row in result.adversarial]).argmax(-1)
        assert bool((label != model(x).argmax(-1)).all())
