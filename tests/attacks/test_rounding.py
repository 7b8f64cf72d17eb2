"""A success holds in any batch: of other order and size, with few classes, in half precision, and with dropout's
masks."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import ATTACKS, DDN, FGSM, assess, boundary
from calibrant.ensembles.dropout import MCDropout
from tests.attacks.conftest import Victim

MINIMUM = [name for name, attack in ATTACKS.items() if attack.nearest]


class Rounding(nn.Module):
    """Rounds the last layer to the ten bits of TF32, differently for each position and batch size."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.body, self.head = model[:-1], model[-1]

    def forward(self, x: Tensor) -> Tensor:
        held: Tensor = self.body(x)
        place = torch.arange(len(x))[:, None] * 0.7 + len(x) + torch.arange(held.shape[1])
        scale = 1.5 + 0.4 * torch.sin(place)
        mantissa, exponent = torch.frexp(held * scale)
        rounded = torch.ldexp((mantissa * 2**11).round() / 2**11, exponent) / scale
        out: Tensor = self.head(held + (rounded - held).detach())
        return out


def compositions(n: int) -> Iterator[list[Tensor]]:
    """Yield orders and sizes of batches that no attack uses."""
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
def test_a_success_holds_in_every_batch(name: str, victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the clearance of CUDA, with logits that depend on the batch as they do on CUDA."""
    monkeypatch.setitem(boundary.UNIT, torch.float32, boundary.TF32_UNIT)
    model = Rounding(victim.model).eval()  # type: ignore[arg-type]
    attack = ATTACKS[name](bounds=victim.bounds, **({"iterations": 30} if name == "cw" else {}))  # type: ignore[arg-type]
    result = attack.run(model, victim.x)
    own = fresh(model, victim.x, [torch.arange(len(victim.x))])
    assert bool(result.success.any()) and (bool(result.success.all()) or not attack.nearest)
    for batches in compositions(len(victim.x)):
        assert bool((fresh(model, result.adversarial, batches) != own)[result.success].all())


def test_the_clearance_costs_little(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = DDN(bounds=victim.bounds).run(victim.model, victim.x).distance
    monkeypatch.setitem(boundary.UNIT, torch.float32, boundary.TF32_UNIT)
    clear = DDN(bounds=victim.bounds).run(victim.model, victim.x).distance
    assert 1.0 < float((clear / plain).median()) < 1.03


@pytest.mark.parametrize("name", MINIMUM)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_with_half_precision_inputs_the_distance_is_that_of_the_returned_point(
    name: str, dtype: torch.dtype, victim: Victim
) -> None:
    """In bfloat16 a pixel near one has steps of 1/256, which are larger than some distances."""
    model, x = copy.deepcopy(victim.model).to(dtype), victim.x[:12].to(dtype)
    labels = torch.cat([(victim.y[:2] + 1) % 10, victim.y[2:12]])  # two items are misclassified already
    attack = ATTACKS[name](bounds=victim.bounds, **({"iterations": 40} if name == "cw" else {}))  # type: ignore[arg-type]
    result = attack.run(model, x, labels)
    assert result.adversarial.dtype == dtype and bool((result.distance[:2] == 0).all())
    pixel, origin = victim.bounds.pixels(result.adversarial.double()), victim.bounds.pixels(x.double())
    measured = torch.linalg.vector_norm((pixel - origin).flatten(1), attack.norm, dim=1).float()
    found = result.success & (result.distance > 0)
    assert bool(found.any())
    torch.testing.assert_close(result.distance[found], measured[found], rtol=1e-3, atol=1e-5)


def test_successes_on_mc_dropout_hold_in_a_fresh_pass(victim: Victim) -> None:
    """Masks belong to a batch, so all items stay in one batch, even more items than `batch`."""
    predictor = MCDropout(victim.model, members=4, seed=2)
    count, batch = 20, 7
    x, y = victim.x[:count], victim.y[:count]
    y = torch.where(torch.arange(count) % 5 == 0, (y + 1) % 10, y)  # every fifth item is misclassified already
    for labels in (None, y):
        result = DDN(bounds=victim.bounds, batch=batch).run(predictor, x, labels=labels)
        away = predictor(x).argmax(-1) if labels is None else labels
        assert result.success.float().mean() > 0.9
        assert bool((predictor(result.adversarial).argmax(-1) != away)[result.success].all())
    assert FGSM(bounds=victim.bounds, batch=batch).run(predictor, x).success.shape == (count,)


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
