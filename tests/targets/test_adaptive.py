"""AdaLS and AR-AdaLS against Algorithm 1 of AR written out as a loop, and what keeps their state honest."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.errors import CalibrantError, InputError
from calibrant.functional import predictions
from calibrant.targets import AdaLS, ArAdaLS, Levels
from calibrant.training import read
from calibrant.types import Predictions, Split

Z = 4


def validation(seed: int, n: int = 60) -> Predictions:
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, Z, generator=rng)
    return predictions(logits, torch.randint(Z, (n,), generator=rng), split=Split.VALIDATION)


def algorithm_1(epochs: list[Predictions], level: list[int], r_count: int, alphas: list[float]) -> list[list[float]]:
    """The pseudo-code: p̃ starts at one-hot, Eq. 3 after each epoch, the clip; returns p̃ after every epoch."""
    soft = [1.0] * r_count
    path = [list(soft)]
    for epoch, alpha in zip(epochs, alphas, strict=True):
        assert epoch.logits is not None
        for r in range(r_count):
            confidence, correct, count = 0.0, 0, 0
            for i in range(epoch.n):
                if level[i] != r:
                    continue
                powers = [math.exp(v) for v in epoch.logits[i].tolist()]
                p = [v / sum(powers) for v in powers]
                confidence += max(p)
                correct += p.index(max(p)) == int(epoch.labels[i])
                count += 1
            soft[r] = soft[r] - alpha * (confidence / count - correct / count)
            soft[r] = min(1.0, max(1 / Z + 1e-3, soft[r]))
        path.append(list(soft))
    return path


def test_ar_adals_is_algorithm_1() -> None:
    epochs = [validation(seed) for seed in range(6)]
    picks = random.Random(0)
    level = [picks.randrange(3) for _ in range(60)]
    train = torch.tensor([0, 1, 2, 0])
    target = ArAdaLS(classes=Z, alpha=0.3, levels=3, given=Levels(train, torch.tensor(level)))
    for number, epoch in enumerate(epochs):
        target.observe(number, epoch)
    path = algorithm_1(epochs, level, 3, [0.3] * 6)
    torch.testing.assert_close(target.trajectory, torch.tensor(path, dtype=torch.float64), rtol=1e-6, atol=0)
    assert min(path[-1]) == 1 / Z + 1e-3  # the clip was reached

    labels = torch.tensor([3, 0, 1, 2])
    q = target(labels, torch.arange(4))
    for i, (label, r) in enumerate(zip(labels.tolist(), train.tolist(), strict=True)):
        epsilon = (path[-1][r] - 1) * Z / (1 - Z)  # Eq. 4
        for z in range(Z):
            assert q[i, z].item() == pytest.approx((z == label) * (1 - epsilon) + epsilon / Z, rel=1e-6)  # Eq. 1
        assert q[i, label].item() == pytest.approx(path[-1][r], rel=1e-6)


def test_adals_is_algorithm_1_with_one_level_and_a_schedule() -> None:
    """AR A.3: α = 0.001 for the first epochs, then 0.05."""
    epochs, target = [validation(seed) for seed in range(4)], AdaLS(classes=Z, alpha=[[0, 0.001], [2, 0.05]])
    for number, epoch in enumerate(epochs):
        target.observe(number, epoch)
    path = algorithm_1(epochs, [0] * 60, 1, [0.001, 0.001, 0.05, 0.05])
    torch.testing.assert_close(target.trajectory, torch.tensor(path, dtype=torch.float64), rtol=1e-6, atol=0)


def test_no_step_without_alpha_and_no_gap_above_one() -> None:
    still = AdaLS(classes=Z, alpha=0.0)
    still.observe(0, validation(0))
    assert still.trajectory.tolist() == [[1.0], [1.0]]
    shy = AdaLS(classes=Z, alpha=1.0)
    shy.observe(0, predictions(torch.zeros(8, Z), torch.zeros(8, dtype=torch.long)))  # right, at confidence 1/4
    assert shy.trajectory[-1].item() == 1.0


def test_members_are_pooled_before_the_gap() -> None:
    """AR-AdaLS of Ensemble: two members that contradict each other are together unsure."""
    logits = torch.tensor([[[9.0, 0, 0, 0]] * 5, [[0.0, 9, 0, 0]] * 5])
    alone, together = AdaLS(classes=Z, alpha=0.1), AdaLS(classes=Z, alpha=0.1)
    labels = torch.full((5,), 2)
    alone.observe(0, predictions(logits[0], labels))
    together.observe(0, predictions(logits, labels))
    mean = torch.softmax(logits.double(), -1).mean(0).max(-1).values.mean().item()
    assert together.trajectory[-1].item() == pytest.approx(1 - 0.1 * mean)
    assert alone.trajectory[-1].item() < together.trajectory[-1].item()


@pytest.mark.parametrize("given", [None, Levels(torch.tensor([0, 1, 0]), torch.arange(60) % 2)])
def test_state_round_trip(given: Levels | None) -> None:
    make = lambda: ArAdaLS(classes=Z, alpha=0.1, levels=2)  # noqa: E731
    target = make()
    if given is not None:
        target.refresh(given)
        target.observe(0, validation(0))
    again = make()
    again.load({key: value.clone() for key, value in target.state().items()})
    assert torch.equal(again.trajectory, target.trajectory)
    if given is not None:
        target.observe(1, validation(1))
        again.observe(1, validation(1))
        labels = torch.tensor([0, 1, 2])
        assert torch.equal(target(labels, torch.arange(3)), again(labels, torch.arange(3)))
    assert again.wants(0) is (given is None)


def test_refresh_moves_items_and_keeps_levels_soft_labels() -> None:
    target = ArAdaLS(classes=Z, alpha=0.2, levels=2, refresh_after=(65, 130))
    assert target.wants(0)
    target.refresh(Levels(torch.tensor([0, 1]), torch.arange(60) % 2))
    assert [epoch for epoch in range(200) if target.wants(epoch)] == [65, 130]
    target.observe(1, validation(3))
    labels = torch.tensor([1, 1])
    before = target(labels, torch.arange(2))
    target.refresh(Levels(torch.tensor([1, 0]), torch.arange(60) % 2))
    assert torch.equal(target(labels, torch.arange(2)), before.flip(0))


def test_an_index_that_is_no_training_item_has_no_soft_label() -> None:
    target = ArAdaLS(classes=Z, levels=2, given=levels([0, -1, 1], [0, 1]))
    q = target(torch.tensor([0, 1, 2]), torch.arange(3))
    assert torch.isnan(q).any(-1).tolist() == [False, True, False]


def test_the_record_is_the_path_of_both_quantities() -> None:
    target = ArAdaLS(classes=Z, alpha=0.3, levels=2, given=levels([0, 1], list(range(2)) * 30), ruler="cw")
    for epoch in range(3):
        target.observe(epoch, validation(epoch))
    record = target.record()
    assert record["ruler"] == "cw" and record["alpha"] == 0.3 and len(record["epsilon"]) == 4
    for p_true, epsilon in zip(record["p_true"], record["epsilon"], strict=True):
        for p, e in zip(p_true, epsilon, strict=True):
            assert 1 - e + e / Z == pytest.approx(p)  # Eq. 2
    alone = AdaLS(classes=Z)
    alone.observe(0, validation(0))
    assert alone.record()["levels"] == 1 and len(alone.record()["epsilon"]) == 2


def levels(train: list[int], held: list[int]) -> Levels:
    return Levels(torch.tensor(train), torch.tensor(held))


BAD_LEVELS: list[tuple[Any, Any, str]] = [
    ([0, 2], [0, 1], "train levels must lie in 0 … 1"),
    ([0, 1, -2], [0, 1], "train levels must lie in 0 … 1, found -2 … 1"),
    ([0, 1], [0, 0], "no validation item has level 1"),
    ([0, 1], torch.tensor([], dtype=torch.long), "but has none of validation"),
    ([0, -1], [0, 1], "2 levels of 1 train items; lower targets.levels"),
    ([0.1, 0.7], [0, 1], r"train levels must be whole numbers \[N\].*calibrant.levels"),
    ([0, 1], [[0], [1]], "validation levels must be whole numbers"),
    ([True, False], [0, 1], "train levels must be whole numbers"),
    (["low", "high"], [0, 1], "train levels holds"),
]


@pytest.mark.parametrize(("train", "held", "says"), BAD_LEVELS)
def test_wrong_levels_are_named(train: Any, held: Any, says: str) -> None:
    target = ArAdaLS(classes=Z, levels=2)
    with pytest.raises(InputError, match=says):
        target.refresh(Levels(train, held))
    assert target.given is None


MADE = ArAdaLS(classes=Z, levels=2, given=levels([0, 1, -1], [0, 1]))
TEST = predictions(torch.zeros(6, Z), torch.arange(6) % Z, split=Split.TEST)
SCORELESS = Predictions(torch.zeros(1), predicted=torch.zeros(1), confidence=torch.ones(1))
NONE_YET = ArAdaLS(classes=Z, levels=2)
MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: ArAdaLS(classes=10, levels=5).load(ArAdaLS(classes=10).state()), "of 10 levels, and the policy has 5"),
    (lambda: AdaLS(classes=Z).load({}), "this state is of another policy"),
    (lambda: NONE_YET(torch.tensor([0]), torch.tensor([0])), "no levels yet"),
    (lambda: NONE_YET.observe(0, validation(0)), "no levels yet"),
    (lambda: MADE.observe(0, validation(0)), "2 validation levels for 60"),
    (lambda: MADE(torch.tensor([0, 1]), torch.tensor([-1, 0])), "item -1 has no level"),  # not the last item's
    (lambda: MADE(torch.tensor([0]), torch.tensor([7])), "item 7 has no level: the levels are of items 0 … 2"),
    (lambda: AdaLS(classes=Z).refresh(None), "use ar_adals"),
    (lambda: AdaLS(classes=Z).observe(0, SCORELESS), "have none"),
    (lambda: AdaLS(classes=7).observe(0, validation(0)), "have 4 classes, and the targets 7"),
    (lambda: AdaLS(classes=Z).observe(0, TEST), "would learn from the test split"),
    *((lambda a=a: AdaLS(Z, alpha=a), "alpha")
      for a in ([[1, 0.1]], [[0, 0.1], [0, 0.2]], [[0]], [], [[0, -1.0]], "fast", None, True, math.nan, -0.1)),
    *((lambda k=k: AdaLS(classes=k), "classes") for k in ("a", None, [3], True, math.inf)),
    *((lambda r=r: ArAdaLS(classes=Z, ruler=r), "ruler") for r in ("a", None, [3])),
]  # fmt: skip


@pytest.mark.parametrize(("call", "says"), MISTAKES)
def test_mistakes_are_named(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(CalibrantError, match=says):
        call()


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, np.int64, list])
def test_levels_may_be_any_array_of_whole_numbers(kind: Any) -> None:
    """As a mask, bytes would choose other soft labels."""
    train, held = [1, 0, 1], [0, 1] * 30
    plain = ArAdaLS(classes=Z, alpha=0.2, levels=2, given=levels(train, held))
    make = (lambda v: torch.tensor(v, dtype=kind)) if isinstance(kind, torch.dtype) else np.array
    target = ArAdaLS(classes=Z, alpha=0.2, levels=2)
    target.refresh(Levels(*((list(v) if kind is list else make(v)) for v in (train, held))))
    for each in (plain, target):
        each.observe(0, validation(2))
    labels = torch.tensor([0, 1, 2])
    assert torch.equal(target(labels, torch.arange(3)), plain(labels, torch.arange(3)))


def test_labelled_images_and_ignored_pixels() -> None:
    labels: Tensor = torch.tensor([[[0, -1], [3, 2]]])
    q = AdaLS(classes=Z)(labels, torch.tensor([0]))
    assert q.shape == (1, 2, 2, Z)
    assert q[0, 0, 1].tolist() == [0.0] * Z


def test_a_schedule_of_alpha_scales_with_the_epochs() -> None:
    recipe = read("ar/cifar10_resnet29_adals", ["targets.alpha=[[0, 0.001], [120, 0.05]]"])
    assert recipe.epochs == 200 and recipe.scaled(20).targets.options["alpha"] == ((0, 0.001), (12, 0.05))
