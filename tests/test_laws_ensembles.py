"""Laws that every ensemble obeys, over the whole table."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import calibrant
from calibrant.ensembles import ENSEMBLES, PEP, MCDropout, assemble
from calibrant.ensembles.deep import DeepEnsemble
from calibrant.ensembles.ensemble import Ensemble
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.snapshot import Snapshot
from calibrant.ensembles.swa import SWA
from calibrant.ensembles.swag import SWAG
from calibrant.ensembles.temporal import TemporalSmoothing
from calibrant.errors import InputError


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))


def relatives(model: nn.Module, n: int) -> list[nn.Module]:
    """Return n networks of the same shape with other weights."""
    out = [copy.deepcopy(model).eval() for _ in range(n)]
    with torch.no_grad():
        for s, other in enumerate(out):
            for p in other.parameters():
                p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(s))
    return out


def states(model: nn.Module, n: int = 4) -> list[dict[str, torch.Tensor]]:
    """Return n checkpoints, as from the end of a training run."""
    return [model.state_dict(), *(other.state_dict() for other in relatives(model, n - 1))]


def x(n: int = 12) -> torch.Tensor:
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(1))


MAKE: dict[str, Callable[[nn.Module, int], Ensemble]] = {
    "pep": lambda model, m: PEP(model, 0.1, members=m),
    "dropout": lambda model, m: MCDropout(model, members=m),
    "deep": lambda model, m: DeepEnsemble([model, *relatives(model, m - 1)]),
    "swa": lambda model, m: SWA(model),
    "swag": lambda model, m: SWAG.fit(model, states(model), [x(32)], members=m),
    "snapshot": lambda model, m: Snapshot.fit(model, states(model, m)),
    "temporal": lambda model, m: TemporalSmoothing(model, window=2),
}
NEUTRAL: dict[str, Callable[[nn.Module], Ensemble]] = {
    "pep": lambda model: PEP(model, 0.0, members=3),
    "dropout": lambda model: MCDropout(model, members=3, p=0.0),
    "deep": lambda model: DeepEnsemble([model]),
    "swa": lambda model: SWA(model),
    "swag": lambda model: SWAG(model, {}, {}, count=3, scale=0.0),
    "snapshot": lambda model: Snapshot.fit(model, [model.state_dict()] * 3),
    "temporal": lambda model: TemporalSmoothing(model, window=0),
}


def test_every_ensemble_of_the_table_has_its_laws() -> None:
    assert set(MAKE) == set(NEUTRAL) == set(ENSEMBLES)


@pytest.mark.parametrize("name", MAKE)
def test_neutral_setting_equals_the_single_model(name: str) -> None:
    model = network().eval()
    single = torch.log_softmax(model(x()).double(), -1)
    for member in NEUTRAL[name](model).members(x()):
        assert torch.equal(member, model(x()))
    assert torch.allclose(NEUTRAL[name](model)(x()), single, atol=1e-12)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("training", [True, False])
def test_model_and_global_randomness_are_left_as_found(name: str, training: bool) -> None:
    model = network().train(training)
    model[1].eval()  # a mixture of modes must survive too
    state, rng = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    modes = [m.training for m in model.modules()]
    MAKE[name](model, 4)(x())
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in state.items())
    assert modes == [m.training for m in model.modules()]
    assert torch.equal(rng, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", MAKE)
def test_deterministic_and_more_members_never_change_the_first(name: str) -> None:
    model = network().eval()
    few, more, again = MAKE[name](model, 2), MAKE[name](model, 5), MAKE[name](model, 5)
    assert torch.equal(few.members(x()), more.members(x())[: few.size])
    assert torch.equal(more.members(x()), again.members(x()))


@pytest.mark.parametrize("name", MAKE)
def test_under_the_callers_autocast_members_and_the_network_keep_their_own_weights(name: str) -> None:
    """Autocast keeps the casts of weights that a pass has used."""
    model = network().eval()
    plain = MAKE[name](model, 3).members(x())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        own = model(x())
        torch.testing.assert_close(MAKE[name](model, 3).members(x()).float(), plain.float(), atol=0.05, rtol=0.05)
        assert torch.equal(model(x()), own)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("members", [1, 4])
def test_call_is_the_log_of_the_mean_probability(name: str, members: int) -> None:
    ensemble = MAKE[name](network().eval(), members)
    mean = torch.softmax(ensemble.members(x()).double(), -1).mean(0)
    assert torch.allclose(ensemble(x()).exp(), mean, atol=1e-12)


@pytest.mark.parametrize("name", MAKE)
def test_a_loader_gives_predictions_pooled_or_by_member(name: str) -> None:
    ensemble = MAKE[name](network().eval(), 3)
    y = torch.arange(12) % 4
    loader = [(x(), y)]
    pooled, kept = ensemble.predict(loader), ensemble.predict(loader, keep_members=True)
    assert torch.allclose(pooled.logits, ensemble(x()), atol=1e-6)
    assert kept.logits.shape == (ensemble.size, 12, 4) and torch.equal(kept.labels, y)
    assert not pooled.raw and kept.raw == (name != "temporal")  # whose one member is an average already


def pixels() -> nn.Module:
    """Return a network [N, 3, H, W] → [N, 4, H, W]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 4, 1)).eval()


class Turned(nn.Module):
    """The network with its classes at another axis."""

    def __init__(self, axis: int, flat: bool = False) -> None:
        super().__init__()
        self.network, self.to, self.flat = pixels(), axis, flat

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.network(x)
        return (z.flatten(2) if self.flat else z).movedim(1, self.to)


IMAGES = torch.randn(5, 3, 6, 4, generator=torch.Generator().manual_seed(2))  # as wide as there are classes
MAPS = torch.randint(0, 4, (5, 6, 4), generator=torch.Generator().manual_seed(3))
MAPS[0, :4] = MAPS[3, 1, 2] = 255


def looped(ensemble: Ensemble, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of all members, and the mean of their probabilities in float64, from a loop over members."""
    outputs = []
    for j in range(ensemble.size):
        with ensemble.member(j) as member, torch.no_grad():
            outputs.append(member(IMAGES))
    total = sum((torch.softmax(z.double(), axis) for z in outputs), torch.zeros((), dtype=torch.float64))
    return torch.stack(outputs), total / len(outputs)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize(
    ("model", "given", "axis"),
    [
        (pixels, {}, 1),
        (pixels, {"class_axis": 1}, 1),
        (pixels, {"class_axis": -3}, 1),
        (lambda: Turned(3), {"class_axis": -1}, 3),
        (lambda: Turned(1, flat=True), {"class_axis": 1}, 1),
        (lambda: Turned(2, flat=True), {"class_axis": -1}, 2),
    ],
    ids=["default", "1", "-3", "last", "three axes, 1", "three axes, last"],
)
def test_maps_are_pooled_over_their_classes(
    name: str, model: Callable[[], nn.Module], given: dict[str, int], axis: int
) -> None:
    def ensemble() -> Ensemble:  # temporal smoothing remembers
        return MAKE[name](model(), 3)

    if name == "temporal":  # its member is a stream, which is told the axis beforehand
        members, mean = looped(replace(ensemble(), **given), axis)  # type: ignore[type-var]
    else:
        members, mean = looped(ensemble(), axis)
    torch.testing.assert_close(ensemble()(IMAGES, **given).exp(), mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(ensemble().members(IMAGES, **given), members)
    y = MAPS.flatten(1) if members.ndim == 4 else MAPS
    kept = y != 255
    loader = [(IMAGES, y)]
    rows = mean.movedim(axis, -1)[kept]
    options = {"ignore_index": 255, **given}
    for pooled in (ensemble().predict(loader, **options), calibrant.predict(ensemble(), loader, **options)):
        torch.testing.assert_close(pooled.logits.double().softmax(-1), rows, atol=1e-6, rtol=0)
        assert torch.equal(pooled.labels, y[kept]) and len(pooled.group.unique()) == 5
    each = ensemble().predict(loader, keep_members=True, **options)
    torch.testing.assert_close(each.logits, torch.stack([m.movedim(axis, -1)[kept] for m in members]).to(each.logits))


@pytest.mark.parametrize("name", MAKE)
def test_three_axes_are_not_guessed(name: str) -> None:
    ensemble, loader = MAKE[name](Turned(1, flat=True), 2), [(IMAGES, MAPS.flatten(1))]
    asked: list[Callable[[], Any]] = [lambda: ensemble(IMAGES), lambda: ensemble.members(IMAGES)]
    asked += [lambda: ensemble.predict(loader), lambda: ensemble.predict(loader, keep_members=True)]
    for ask in asked:
        with pytest.raises(InputError, match="three axes.*pass class_axis=1 or class_axis=-1"):
            ask()


@pytest.mark.parametrize("name", MAKE)
def test_a_network_may_state_its_class_axis(name: str) -> None:
    model = Turned(3)
    by_argument = MAKE[name](model, 2)(IMAGES, class_axis=-1)
    model.class_axis = -1
    torch.testing.assert_close(MAKE[name](model, 2)(IMAGES), by_argument)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("column", [True, False])
def test_one_logit_per_item_is_that_of_class_1(name: str, column: bool) -> None:
    one = nn.Sequential(network(), nn.Linear(4, 1), *([] if column else [nn.Flatten(0)])).eval()
    with torch.no_grad():
        one[1].weight.copy_(torch.tensor([[9.0, -9.0, 9.0, -9.0]]))

    def ensemble() -> Ensemble:
        return MAKE[name](one, 3)

    with ensemble().member(0) as first, torch.no_grad():
        p = torch.sigmoid(first(x()).reshape(-1).double()) if name != "temporal" else ensemble()(x())[:, 1].exp()
    members = ensemble().members(x())
    torch.testing.assert_close(members[0].double().softmax(-1), torch.stack([1 - p, p], -1), atol=1e-6, rtol=0)
    mean = members.double().softmax(-1).mean(0)
    torch.testing.assert_close(ensemble()(x()).exp(), mean, atol=1e-6, rtol=0)
    loader = [(x(), torch.arange(12) % 2)]
    torch.testing.assert_close(ensemble().predict(loader).logits.exp(), mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(ensemble().predict(loader, keep_members=True).logits, members)


def ingredients(**settings: Any) -> Ingredients:
    """Return what a run provides: one network, its checkpoints, and data."""
    model = network().eval()
    loader = [(x(), torch.arange(12) % 4)]
    return Ingredients(
        [model],
        held_out=lambda: loader,
        checkpoints=lambda: states(model),
        training=lambda: [x(32)],
        **settings,
    )


@pytest.mark.parametrize("name", ENSEMBLES)
def test_every_ensemble_of_the_table_builds_itself(name: str) -> None:
    given = ingredients()
    if name == "deep":
        given = replace(given, models=[network(0), network(1)])
    made = assemble(name, given)
    assert type(made) is ENSEMBLES[name]
    assert made(x()).shape == (12, 4)


def test_a_new_entry_without_build_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Newcomer(Ensemble):
        """A class without a method `build`."""

    monkeypatch.setitem(ENSEMBLES, "newcomer", Newcomer)
    with pytest.raises(InputError, match="Newcomer cannot be built by name"):
        assemble("newcomer", ingredients())
