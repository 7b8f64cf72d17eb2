"""A success is one in whatever batch it is looked at: networks whose logits change with the batch, as on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import ATTACKS, DDN, FGSM, Attack, Bounds, CarliniWagner, DeepFool
from calibrant.attacks.noise import strict
from calibrant.ensembles.dropout import MCDropout
from tests.attacks.conftest import Victim


class Rounding(nn.Module):
    """TF32's ten bits of mantissa in the last layer; what is lost depends on an item's place and on the batch size."""

    def __init__(self, model: nn.Sequential, bits: int = 10) -> None:
        super().__init__()
        self.body, self.head, self.bits = model[:-1], model[-1], bits

    def forward(self, x: Tensor) -> Tensor:
        held: Tensor = self.body(x)
        place = torch.arange(len(x))[:, None] * 0.7 + len(x) + torch.arange(held.shape[1])
        scale = 1.5 + 0.4 * torch.sin(place)
        mantissa, exponent = torch.frexp(held * scale)
        rounded = torch.ldexp((mantissa * 2 ** (self.bits + 1)).round() / 2 ** (self.bits + 1), exponent) / scale
        out: Tensor = self.head(held + (rounded - held).detach())
        return out


def compositions(n: int) -> Iterator[list[Tensor]]:
    """Orders and sizes of batches that an attack does not use itself."""
    yield [torch.arange(n)]
    yield [torch.randperm(n, generator=torch.Generator().manual_seed(1))]
    yield list(torch.arange(n).split(1))
    yield list(torch.randperm(n, generator=torch.Generator().manual_seed(2)).split(7))


@torch.no_grad()
def fresh(model: nn.Module, x: Tensor, batches: list[Tensor]) -> Tensor:
    label = torch.zeros(len(x), dtype=torch.long)
    for rows in batches:
        label[rows] = model(x[rows]).argmax(-1)
    return label


@pytest.mark.parametrize("name", ATTACKS)
def test_a_success_is_one_in_every_batch(name: str, victim: Victim) -> None:
    model = Rounding(victim.model).eval()  # type: ignore[arg-type]
    short = {"iterations": 60} if name == "cw" else {}
    attack = ATTACKS[name](bounds=victim.bounds, **short)  # type: ignore[arg-type]
    result = attack.run(model, victim.x)
    own = fresh(model, victim.x, [torch.arange(len(victim.x))])
    assert bool(result.success.any())
    for batches in compositions(len(victim.x)):
        assert bool((fresh(model, result.adversarial, batches) != own)[result.success].all())
    if attack.nearest:  # and it costs little: the distance is that of the network without noise
        exact = attack.run(victim.model, victim.x).distance
        assert bool(result.success.all())
        assert 1.0 < float((result.distance / exact).median()) < 1.005


def test_the_noise_is_there_and_a_bare_margin_would_not_hold(victim: Victim) -> None:
    """What the law above is worth: points a little beyond the boundary by one pass, and another batch undoes it."""
    model = Rounding(victim.model, bits=7).eval()  # type: ignore[arg-type]
    own = fresh(model, victim.x, [torch.arange(60)])
    found = DDN(bounds=victim.bounds).run(model, victim.x)
    low, high = victim.x.clone(), found.adversarial
    for _ in range(25):  # bisection to where this batch's own pass changes its mind
        middle = (low + high) / 2
        flipped = (fresh(model, middle, [torch.arange(60)]) != own)[:, None, None, None]
        low, high = torch.where(flipped, low, middle), torch.where(flipped, middle, high)
    lost = [bool((fresh(model, high, batches) == own).any()) for batches in compositions(60)]
    assert not lost[0] and any(lost[1:])
    kept = [bool((fresh(model, found.adversarial, batches) != own).all()) for batches in compositions(60)]
    assert all(kept)


@pytest.mark.parametrize("attack", [DDN, CarliniWagner])
def test_an_input_that_stands_almost_at_the_boundary_still_flips(attack: type[DDN]) -> None:
    """Its margin is under the noise; it goes as far as that needs, and no infinite distance comes out."""
    model = nn.Linear(30, 3)
    with torch.no_grad():
        g = torch.Generator().manual_seed(0)
        model.weight.copy_(torch.randn(3, 30, generator=g))
        model.bias.zero_()
        x = 0.3 + 0.4 * torch.rand(12, 30, generator=g)
        for _ in range(2):  # onto the nearest boundary, up to a ten-thousandth of the logits
            z, w = model(x), model.weight
            own, other = z.topk(2, -1).indices.T
            normal = w[own] - w[other]
            height = (z.gather(1, own[:, None]) - z.gather(1, other[:, None])).squeeze(1)
            aim = 1e-4 * torch.logspace(-1.5, 0, 12)
            x = x - ((height - aim) / normal.square().sum(1))[:, None] * normal
    result = attack(bounds=Bounds(-5, 5)).run(model, x)
    assert bool(result.success.all()) and bool((result.distance < 1e-2).all())
    with torch.no_grad():
        label = torch.cat([model(row[None]) for row in result.adversarial]).argmax(-1)
        assert bool((label != model(x).argmax(-1)).all())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("attack", [DDN, DeepFool])
def test_with_few_classes_a_success_is_one_alone_and_in_any_layout(attack: type[Attack], classes: int) -> None:
    """At the boundary two of two logits are equal: their range says nothing of the noise behind them."""
    g = torch.Generator().manual_seed(classes)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(1152, 128), nn.ReLU(), nn.Linear(128, classes),
    )  # fmt: skip
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=g) * math.sqrt(2 / p[0].numel()) if p.ndim > 1 else p.data.zero_()
    x = torch.rand(64, 3, 12, 12, generator=g)
    own = fresh(model, x, [torch.arange(64)])
    result = attack().run(model, x)
    assert bool(result.success.all())
    last = result.adversarial.contiguous(memory_format=torch.channels_last)
    for seen, rows in ((result.adversarial, 1), (result.adversarial, 3), (last, 64), (last, 1)):
        assert bool((fresh(model, seen, list(torch.arange(64).split(rows))) != own).all())


class Kernels(nn.Module):
    """A library that takes another kernel for larger batches: the small ones are exact, the others round as TF32 does.

    What they lose is a share of the logits' range, by class, by point and by batch size, the same in every pass.
    """

    def __init__(self, model: nn.Module, share: float = 1e-3, exact_below: int = 16) -> None:
        super().__init__()
        self.model, self.share, self.exact_below = model, share, exact_below

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.model(x)
        if len(x) < self.exact_below:
            return z
        seen = z.detach()
        size = seen.amax(-1, keepdim=True) - seen.amin(-1, keepdim=True)
        phase = 97.0 * torch.arange(z.shape[1]) + 0.37 * len(x) + 2000 * seen / size
        return z + 0.5 * self.share * size * torch.sin(phase)


def between(victim: Victim, shares: Tensor) -> Tensor:
    """Inputs that stand on the boundary up to a share of the way there: the label of many is the kernel's."""
    found = DDN(bounds=victim.bounds).run(victim.model, victim.x)
    return victim.x + shares[:, None, None, None] * (found.adversarial - victim.x)


@pytest.mark.parametrize("share", [2e-4, 1e-3])
@pytest.mark.parametrize("attack", [DDN, CarliniWagner, DeepFool])
def test_a_success_is_one_though_small_batches_have_kernels_of_their_own(
    attack: type[Attack], share: float, victim: Victim
) -> None:
    """A few items that are looked at apart show no noise, and are judged among all."""
    model = Kernels(victim.model, share).eval()
    short = {"iterations": 60} if attack is CarliniWagner else {}
    # most as they are, a dozen almost at the boundary: half precision, or a second look, takes such ones apart
    shares = torch.cat([torch.zeros(48), 1 + 2 * share * torch.linspace(-3, 3, 12)])
    x = between(victim, shares)
    own = fresh(model, x, [torch.arange(60)])
    for labels in (own, None):
        result = attack(bounds=victim.bounds, **short).run(model, x, labels)  # type: ignore[call-arg]
        assert bool(result.success.all())
        for batches in compositions(60):
            assert bool((fresh(model, result.adversarial, batches) != own).all())
        pixel, origin = victim.bounds.pixels(result.adversarial), victim.bounds.pixels(x)
        torch.testing.assert_close(result.distance, (pixel - origin).flatten(1).norm(dim=1), rtol=1e-3, atol=1e-6)
    exact = attack(bounds=victim.bounds, **short).run(victim.model, victim.x).distance[:48]  # type: ignore[call-arg]
    assert 1.0 < float((result.distance[:48] / exact).median()) < 1 + 6 * share  # what it costs


@pytest.mark.parametrize("name", ATTACKS)
def test_a_label_that_rounding_takes_away_is_no_success(name: str, victim: Victim) -> None:
    """The caller's pass says one class, the attack's own says another: the input stands still, and nothing flipped."""
    model = Kernels(victim.model).eval()
    x = between(victim, 1 + 1e-3 * torch.linspace(-1, 1, 60))
    for rows in (60, 1):
        own = fresh(model, x, list(torch.arange(60).split(rows)))
        assert rows == 60 or int((own != fresh(model, x, [torch.arange(60)])).sum()) > 3
        short = {"iterations": 60} if name == "cw" else {}
        result = ATTACKS[name](bounds=victim.bounds, **short).run(model, x, own)  # type: ignore[arg-type]
        if ATTACKS[name].nearest:
            assert bool(result.success.all()) and bool((result.distance < 0.1).all())
        for batches in compositions(60):
            assert bool((fresh(model, result.adversarial, batches) != own)[result.success].all())


@pytest.mark.parametrize("attack", [DDN, DeepFool])
def test_a_remainder_is_not_judged_by_the_kernel_of_small_batches(attack: type[Attack], victim: Victim) -> None:
    """60 items in slots of 50: the last ten, looked at apart, would show no noise."""
    model = Kernels(victim.model, exact_below=24).eval()
    own = fresh(model, victim.x, [torch.arange(60)])
    result = attack(bounds=victim.bounds, batch=50).run(model, victim.x, own)
    assert bool(result.success.all())
    for rows in (60, 30, 26):
        assert bool((fresh(model, result.adversarial, list(torch.arange(60).split(rows))) != own).all())


@pytest.mark.parametrize("name", ["cw", "ddn", "deepfool"])
def test_an_input_at_the_boundary_alone_is_moved_beyond_it(name: str, victim: Victim) -> None:
    """Its gradient is not asked for, because it seems to have arrived; that is no constant model."""
    model = Kernels(victim.model, exact_below=1)
    x = between(victim, 1 + 1e-3 * torch.linspace(-1, 1, 60))
    alone = fresh(model, x, list(torch.arange(60).split(1)))
    apart = (alone != fresh(model, x, list(torch.arange(60).split(8)))).nonzero().squeeze(1)
    for i in apart[:4]:
        result = ATTACKS[name](bounds=victim.bounds).run(model, x[i, None], alone[i, None])
        assert bool(result.success) and 0 < float(result.distance) < 0.1
        assert int(fresh(model, result.adversarial, [torch.arange(1)])) != int(alone[i])


@pytest.mark.parametrize(("count", "batch"), [(3, None), (150, None), (30, 7)])
def test_mc_dropouts_masks_are_those_of_a_fresh_pass(count: int, batch: int | None, victim: Victim) -> None:
    """Fewer rows than a batch is filled up to, more than there are slots, and some that are not attacked."""
    predictor = MCDropout(victim.model, members=4, seed=2)
    x, y = victim.x.repeat(3, 1, 1, 1)[:count], victim.y.repeat(3)[:count]
    y = torch.where(torch.arange(count) % 5 == 0, (y + 1) % 10, y)  # wrong from the start
    for labels in (None, y):
        result = DDN(bounds=victim.bounds, iterations=8, batch=batch).run(predictor, x, labels=labels)
        away = predictor(x).argmax(-1) if labels is None else labels
        assert result.success.float().mean() > 0.9
        assert bool((predictor(result.adversarial).argmax(-1) != away)[result.success].all())
    assert FGSM(bounds=victim.bounds, batch=batch).run(predictor, x).success.shape == (count,)


def test_strict_float32_is_given_back() -> None:
    owners = (torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul)
    before = [owner.fp32_precision for owner in owners]
    with pytest.raises(RuntimeError, match="stop"), strict(torch.device("cuda")):
        assert [owner.fp32_precision for owner in owners] == ["ieee"] * 3
        raise RuntimeError("stop")
    assert [owner.fp32_precision for owner in owners] == before
    assert torch.backends.cudnn.allow_tf32 is True
