"""Laws that hold for every attack of the table."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import ATTACKS, Attack, Bounds, CarliniWagner, DeepFool
from calibrant.attacks.field import Field
from calibrant.attacks.linear import candidates
from calibrant.attacks.second import reached
from calibrant.attacks.task import Task
from calibrant.errors import InputError, UnknownNameError
from tests.attacks.conftest import Victim

MINIMUM = [name for name, attack in ATTACKS.items() if attack.nearest]
BUDGET = [name for name, attack in ATTACKS.items() if not attack.nearest]
BUDGETS = (0.02, 0.05, 0.1, 0.2)


def make(name: str, bounds: Bounds, **settings: object) -> Attack:
    short: dict[str, object] = {"iterations": 150} if name == "cw" else {}
    return ATTACKS[name](bounds=bounds, **{**short, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ATTACKS)
def test_stays_in_bounds_and_flips_what_it_calls_a_success(name: str, victim: Victim) -> None:
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
    called = make(name, victim.bounds)(victim.model, victim.x[:8])  # the same, without the record
    torch.testing.assert_close(called, result.adversarial[:8], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ATTACKS)
def test_leaves_everything_as_found(name: str, victim: Victim) -> None:
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


def test_cudnn_does_not_measure_every_size_of_a_shrinking_batch(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seen = set()
    with victim.model.register_forward_hook(lambda *_: seen.add(torch.backends.cudnn.benchmark)):
        make("ddn", victim.bounds).run(victim.model, victim.x[:8])
    assert seen == {False} and torch.backends.cudnn.benchmark


@pytest.mark.parametrize("name", BUDGET)
def test_a_larger_budget_never_lowers_success(name: str, victim: Victim) -> None:
    """Item by item, also where one step of all of the budget goes past another class."""
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
        for n in (2, 8, 50)
    ]
    assert rates == sorted(rates) and rates[-1] == 1.0


@pytest.mark.parametrize("name", MINIMUM)
@pytest.mark.parametrize("classes", [2, 5])
def test_closed_form_on_linear_models(name: str, classes: int) -> None:
    """min_k (z_r − z_k)/‖w_r − w_k‖, within 1 %, where the bounds do not bite."""
    g = torch.Generator().manual_seed(3)
    weight = torch.linalg.qr(torch.randn(40, classes, generator=g, dtype=torch.float64)).Q.T * 3
    model = nn.Linear(40, classes).double()
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(0.3 * torch.randn(classes, generator=g, dtype=torch.float64))
    x = 0.35 + 0.3 * torch.rand(12, 40, generator=g, dtype=torch.float64)

    def closed_form(x: Tensor) -> Tensor:
        z = model.double()(x).detach()
        own = z.argmax(-1)
        distance = torch.full((12,), torch.inf, dtype=torch.float64)
        for i in range(12):
            for k in range(classes):
                if k != own[i]:
                    ratio = (z[i, own[i]] - z[i, k]) / (weight[own[i]] - weight[k]).norm()
                    distance[i] = torch.minimum(distance[i], ratio)
        return distance

    attack = ATTACKS[name](bounds=Bounds(-10, 10))
    torch.testing.assert_close(attack.run(model, x).distance, closed_form(x), rtol=0.01, atol=0)
    near = (x + 0.98 * (attack(model, x) - x)).float()  # in float32, close to the boundary
    ours = attack.run(model.float(), near).distance.double()
    torch.testing.assert_close(ours, closed_form(near.double()), rtol=0.01, atol=0)


@pytest.mark.parametrize("name", ["cw", "ddn", "deepfool"])
@pytest.mark.parametrize(("classes", "size"), [(10, 64), (3, 200)])
def test_closed_form_where_the_likeliest_class_is_not_the_nearest(name: str, classes: int, size: int) -> None:
    """A linear layer as torch initialises it: some boundary behind a less likely class is nearer."""
    g, worst, misled = torch.Generator().manual_seed(0), 0.0, 0
    for _ in range(3):
        model = nn.Linear(size, classes).double()
        with torch.no_grad():
            for parameter in (model.weight, model.bias):
                parameter.copy_((2 * torch.rand(parameter.shape, generator=g) - 1) / size**0.5)
        x = torch.rand(40, size, generator=g, dtype=torch.float64)
        z, w = model(x).detach(), model.weight.detach()
        own = z.argmax(-1, keepdim=True)
        height = (z.gather(1, own) - z).scatter(1, own, torch.inf)
        away = height / (w[own] - w[None]).norm(dim=-1)
        misled += int((away.argmin(1) != height.argmin(1)).sum())
        distance = ATTACKS[name](bounds=Bounds(-10, 10)).run(model, x).distance
        worst = max(worst, float((distance / away.amin(1) - 1).abs().max()))
    assert worst < 0.01 and (misled > 0 or classes == 3)


@pytest.mark.parametrize("name", MINIMUM)
@pytest.mark.parametrize("seed", [28, 72, 141])
def test_closed_form_where_some_classes_are_much_steeper(name: str, seed: int) -> None:
    """The nearest boundary may then be of a class far down the ranks, which a look at the likeliest four misses."""
    g = torch.Generator().manual_seed(seed)
    model = nn.Linear(300, 10)
    with torch.no_grad():
        steep = torch.exp(0.5 * torch.randn(10, 1, generator=g))
        model.weight.copy_(steep * torch.randn(10, 300, generator=g) / 300**0.5)
        model.bias.copy_(0.1 * torch.randn(10, generator=g))
    x = torch.rand(60, 300, generator=g)
    w, bias = model.weight.detach().double(), model.bias.detach().double()
    z = x.double() @ w.T + bias
    own = z.argmax(-1, keepdim=True)
    away = (z.gather(1, own) - z).scatter(1, own, torch.inf) / (w[own] - w[None]).norm(dim=-1)
    rank = (z > z.gather(1, away.argmin(1, keepdim=True))).sum(1)
    assert int(rank.max()) > 4, "some nearest boundary is of none of the four likeliest others"
    distance = ATTACKS[name](bounds=Bounds(-20, 20)).run(model, x).distance.double()
    torch.testing.assert_close(distance, away.amin(1), rtol=0.01, atol=0)


@pytest.mark.parametrize(("held", "looked", "nearest"), [(1.2, 1 + 1, 5.0), (1.3, 1 + 1 + 2, 1.9), (torch.inf, 4, 1.9)])
def test_a_boundary_beyond_what_is_held_is_not_looked_for(held: float, looked: int, nearest: float) -> None:
    """The likeliest other class is 5 away, the next two, five times as steep, 1.9 and 2.5. Their gradients together say
    1.9/√(1 + 0.76²) = 1.51, from which a quarter is taken: 1.21."""
    w, bias, box = torch.zeros(4, 6), torch.tensor([0.0, -1.0, -1.9, -2.5]), Bounds(-9, 9)
    w[[1, 2, 3], [0, 1, 2]] = torch.tensor([0.2, 1.0, 1.0])
    seen, task = Field(lambda x: x @ w.T + bias, box, torch.float32), Task(torch.zeros(1, 6), torch.tensor([0]), box)
    clean = seen.logits(task.origin)
    point, count = candidates(seen, task, clean, (1, 3), 8, torch.zeros(1), torch.tensor([held]))
    assert count.item() == looked and point.norm().item() == pytest.approx(nearest, rel=1e-5)


def test_a_network_that_curves_towards_the_input_is_looked_at_along_a_boundary_that_seems_farther() -> None:
    """h = x + 2x² − 1.2 has its linear model's root at 1.2 and its own at 0.56; a success at 1 is held elsewhere."""
    box = Bounds(-9, 9)

    def model(x: Tensor) -> Tensor:
        return torch.stack([0 * x[:, 0], x[:, 0] + 2 * x[:, 0] ** 2 - 1.2, x[:, 1] - 0.99], 1)

    seen, task = Field(model, box, torch.float32), Task(torch.zeros(1, 2), torch.tensor([0]), box)
    held = torch.tensor([[0.0, 1.0]]), torch.tensor([True])
    point, there = reached(seen, task, torch.tensor([[1.2, 0.0]]), held, 8, 2.0)
    assert bool(there) and point[0, 0].item() == pytest.approx(0.999) and point[0, 1] == 0


@pytest.mark.parametrize("name", MINIMUM)
@pytest.mark.parametrize(("classes", "size"), [(2, 30), (10, 20), (10, 200)])
def test_closed_form_on_linear_models_whose_inputs_stand_at_the_bounds(name: str, classes: int, size: int) -> None:
    """Most pixels of an image of clothes are black: the shortest way is along those of the normal that may move."""
    g = torch.Generator().manual_seed(classes + size)
    model = nn.Linear(size, classes)
    with torch.no_grad():
        model.weight.copy_(4 * torch.randn(classes, size, generator=g))
        model.bias.copy_(torch.randn(classes, generator=g))
    x = torch.rand(20, size, generator=g) ** 6
    x[x < 0.2], x[x > 0.8] = 0.0, 1.0
    weight, bias = model.weight.detach().double(), model.bias.detach().double()

    def shortest(x: Tensor) -> float:
        """Of each class, δ = clip(x + λw) − x whose λ a bisection finds; the nearest of them."""
        z = weight @ x + bias
        own, out = int(z.argmax()), []
        for k in set(range(classes)) - {own}:
            w, low, high = weight[k] - weight[own], 0.0, 1e6
            for _ in range(100):
                middle = (low + high) / 2
                short = ((x + middle * w).clamp(0, 1) - x) @ w < z[own] - z[k]
                low, high = (middle, high) if short else (low, middle)
            out.append(float(((x + high * w).clamp(0, 1) - x).norm()) if high < 1e6 else float("inf"))
        return min(out)

    closed_form = torch.tensor([shortest(row) for row in x.double()])
    torch.testing.assert_close(make(name, Bounds()).run(model, x).distance, closed_form, rtol=0.01, atol=0)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_item_does_not_see_its_batch(name: str, victim: Victim) -> None:
    """Alone, among others, in other slots: the same distance."""
    x = victim.x[:24]
    whole = make(name, victim.bounds).run(victim.model, x).distance
    alone = torch.cat([make(name, victim.bounds).run(victim.model, row[None]).distance for row in x[:2]])
    turned = make(name, victim.bounds, batch=10).run(victim.model, x.flip(0)).distance.flip(0)
    # on some processors a convolution of ten rows rounds otherwise than one of 24, and with the logits' last digits the
    # distance moves by up to 6e-6 of itself; a batch that is one search, as cleverhans', moves it by up to 22 %
    torch.testing.assert_close(alone, whole[:2], rtol=5e-5, atol=1e-6)
    torch.testing.assert_close(turned, whole, rtol=5e-5, atol=1e-6)


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
    spent = name in BUDGET  # a budget is spent on every item; the nearest success of an item that is wrong is itself
    assert bool(((away.distance > 0) == spent).all()) and bool(((away.calls > 0) == spent).all())


def test_gradient_evaluations_are_counted(victim: Victim) -> None:
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += torch.is_grad_enabled()

    hook = victim.model.register_forward_hook(count)
    result = DeepFool(bounds=victim.bounds, candidates=4, iterations=3).run(victim.model, victim.x[:8])
    hook.remove()
    # four candidates a step, and once the linear model's four likeliest classes, the rest at once and one by one
    assert calls in (3 + 1, 3 + 2) and int(result.calls.max()) <= 4 * 3 + 10 and int(result.calls.min()) >= 4 + 4
    assert int(make("fgsm", victim.bounds).run(victim.model, victim.x).calls.max()) == 1
    ddn = make("ddn", victim.bounds).run(victim.model, victim.x)
    assert int(ddn.calls.min()) == 8 + 4 + 1  # its steps, the linear model's four likeliest classes, the rest at once
    paper = CarliniWagner(bounds=victim.bounds)
    assert (paper.search_steps, paper.iterations, paper.lr) == (3, 500, 0.005)
    assert int(paper.run(victim.model, victim.x[:4]).calls.max()) <= 1500


def test_bad_input(victim: Victim) -> None:
    attack = ATTACKS["ddn"]
    with pytest.raises(InputError, match=r"outside the bounds \[0, 1\]"):
        attack().run(victim.model, victim.x)

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0 * x.flatten(1)[:, :3] + torch.tensor([2.0, 1.0, 0.0])

    for name in ATTACKS:
        with pytest.raises(InputError, match="constant logits"):
            make(name, victim.bounds).run(Constant(), victim.x)
    with pytest.raises(InputError, match="without a gradient"):
        attack(bounds=victim.bounds).run(lambda x: torch.ones(len(x), 3) * torch.arange(3), victim.x)
    with pytest.raises(InputError, match="10 classes"):
        attack(bounds=victim.bounds).run(victim.model, victim.x, labels=victim.y + 10)
    with pytest.raises(InputError, match="real-valued"):
        attack().run(victim.model, victim.y)
    with pytest.raises(InputError, match="one of them"):
        attack(bounds=victim.bounds).run(victim.model, victim.x, labels=victim.y, targets=victim.y)
    with pytest.raises(UnknownNameError, match="did you mean 'graph'"):
        attack(bounds=victim.bounds, engine="grph").run(victim.model, victim.x)  # type: ignore[arg-type]

    class Lost(nn.Module):  # the other branch's gradient is no number, whichever is taken
        def forward(self, x: Tensor) -> Tensor:
            z = x.flatten(1)[:, :3]
            return torch.where(z < 9, z, z * torch.nan)

    with pytest.raises(InputError, match="no number everywhere"):
        make("cw", victim.bounds).run(Lost(), victim.x)
    with pytest.raises(InputError, match="CUDA"):
        attack(bounds=victim.bounds, engine="graph").run(victim.model, victim.x)
