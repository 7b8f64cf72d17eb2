"""The automatic choice: right on simulated truths, deterministic, within its budget, honest about what it skipped."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import calibrant
from calibrant.errors import InputError, UnknownNameError
from calibrant.functional.scores import reduce
from calibrant.posthoc import CALIBRATORS, Chain
from calibrant.posthoc.auto import Auto, Candidate, Unchanged, conclude, singles
from calibrant.posthoc.calibrator import Calibrator, at_least
from calibrant.posthoc.crossval import HeldOut
from calibrant.posthoc.histogram import Histogram, HistogramMass
from calibrant.posthoc.isotonic import Isotonic
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.temperature import Temperature
from calibrant.posthoc.vector import Vector
from calibrant.types import Predictions


@pytest.fixture(autouse=True)
def small_table() -> Iterator[None]:
    """Five methods are enough to test the choosing; the whole table runs in one test below.

    Put back as it was, order included: `monkeypatch.delitem` puts back at the end.
    """
    whole: dict[str, type[Calibrator]] = dict(CALIBRATORS)
    for name in whole.keys() - {c.name for c in (Temperature, Histogram, HistogramMass, Isotonic, Vector)}:
        del CALIBRATORS[name]
    yield
    CALIBRATORS.clear()
    CALIBRATORS.update(whole)


def sample(n: int, weight: Tensor | None = None, seed: int = 0, k: int = 4) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(n, k, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
    return calibrant.predictions(z * (torch.ones(k) if weight is None else weight).double(), y)


def nll(p: Predictions) -> Tensor:
    loss = reduce(p).log_p_label
    assert loss is not None
    return -loss


def test_calibrated_data_are_left_alone() -> None:
    m = calibrant.fit("auto", sample(2000))
    assert m.record.calibrator == "identity" and m.degrees == 0 and m.record.guard["ok"]


def test_one_temperature_is_enough_where_one_temperature_is_the_truth() -> None:
    m = calibrant.fit("auto", sample(2000, torch.full((4,), 3.0)))
    assert m.record.calibrator == "temperature"
    assert m.summary()["temperature"] == pytest.approx(3, rel=0.1)


def test_more_parameters_where_they_are_needed() -> None:
    m = calibrant.fit("auto", sample(3000, torch.tensor([6.0, 1.0, 2.0, 0.5])))
    assert m.record.calibrator == "vector"


def test_no_worse_than_the_best_single_method_beyond_noise() -> None:
    for seed, weight in enumerate([torch.full((4,), 2.5), torch.tensor([4.0, 1.0, 1.0, 2.0])]):
        p, test = sample(1500, weight, seed), sample(5000, weight, seed + 100)
        auto = nll(calibrant.fit("auto", p, seed=seed).predictions(test))
        for name in CALIBRATORS:
            excess = auto - nll(calibrant.fit(name, p).predictions(test))
            assert float(excess.mean()) <= 3 * float(excess.std()) / 5000**0.5


def test_ranking_is_whole_ordered_and_deterministic() -> None:
    p = sample(800, torch.full((4,), 2.0))
    a, b = (calibrant.fit("auto", p, seed=3, budget=600).record.ranking for _ in range(2))
    assert a == b
    methods = [row["method"] for row in a]
    assert {"identity", *CALIBRATORS, "temperature+histogram_mass", "temperature+isotonic"} <= set(methods)
    values = [row["nll"]["value"] for row in a]
    assert values == sorted(values) and [row["status"] for row in a].count("chosen") == 1
    for row in a:
        assert row["nll"]["low"] < row["nll"]["value"] < row["nll"]["high"]
    assert a[0]["excess"]["value"] == 0 or a[0]["status"] == "flagged"


def test_budget_skips_and_says_so() -> None:
    p = sample(3000, k=30)
    start = time.monotonic()
    ranking = calibrant.fit("auto", p, budget=1e-6).record.ranking
    assert time.monotonic() - start < 20
    skipped = [row for row in ranking if row["status"] == "skipped"]
    assert len(skipped) == len(ranking) - 1 and all("budget" in row["reason"] for row in skipped)
    assert next(row for row in ranking if row["status"] == "chosen")["method"] == "identity"


def test_what_would_not_fit_into_the_budget_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Slow(Temperature):
        name = "slow"  # type: ignore[misc]

        def solve(self, p: Predictions) -> FittedMap:
            sizes.append(p.n)
            time.sleep(p.n * 1e-4)
            return super().solve(p)

    monkeypatch.setitem(CALIBRATORS, "slow", Slow)
    ranking = calibrant.fit("auto", sample(8000), budget=3).record.ranking
    row = next(r for r in ranking if r["method"] == "slow")
    assert row["status"] == "skipped" and "would take about" in row["reason"]
    assert sizes == [800]  # a tenth of the items told that all of them would need four seconds


def test_a_method_that_a_few_items_cannot_feed_is_tried_on_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hungry(Temperature):
        name = "hungry"  # type: ignore[misc]

        def solve(self, p: Predictions) -> FittedMap:
            at_least(p, 2000, "it is hungry", self.name)
            return super().solve(p)

    monkeypatch.setitem(CALIBRATORS, "hungry", Hungry)
    ranking = calibrant.fit("auto", sample(6000), budget=60).record.ranking
    assert next(r for r in ranking if r["method"] == "hungry").get("repeats")


def test_the_promising_come_first() -> None:
    names = [c.name for c in singles()]
    assert names[:2] == ["temperature", "vector"]  # of the five left in the table here
    assert sorted(names[2:]) == ["histogram"] * 2 + ["histogram_mass"] * 2 + ["isotonic"] * 2


def test_one_standard_error_towards_fewer_parameters() -> None:
    """The rule on made-up losses: fewest parameters, worse than no other by more than one error of the difference."""
    p = sample(400)
    g = torch.Generator().manual_seed(0)
    base = 1 + torch.rand(400, generator=g, dtype=torch.float64)
    ripple = torch.ones(400, dtype=torch.float64)
    ripple[::2] = -1  # mean 0; a multiple a of it has the standard error a / 20

    def candidate(calibrator: Calibrator, degrees: float, loss: Tensor) -> Candidate:
        zero = torch.zeros(400, dtype=torch.float64)
        return Candidate(calibrator, [HeldOut(loss, zero, zero, None, degrees, 0, ())])

    identity = candidate(Unchanged(), 0, base + 5)
    few, more = candidate(Temperature(), 1, base + 0.012), candidate(Isotonic(), 8, base + 0.005 + 0.01 * ripple)
    best = candidate(Vector(), 9, base + 0.2 * ripple)
    # few: 0.012 above the best, error 0.015 (1.5 for overlapping folds, of 0.01); but 0.007 above `more`, error 0.00075
    assert conclude([identity, few, best], p, 5).calibrator == Temperature()
    for c in (few, best):
        c.status = "ran"
    assert conclude([identity, few, more, best], p, 5).calibrator == Isotonic()


def test_a_candidate_that_cannot_be_fitted_is_listed_with_its_reason() -> None:
    ranking = calibrant.fit("auto", sample(14)).record.ranking
    failed = {row["method"]: row["reason"] for row in ranking if row["status"] == "failed"}
    assert "at least 15 items" in failed["histogram"]


def test_what_the_guard_flags_is_not_chosen() -> None:
    p = calibrant.predictions(3 * torch.eye(3)[torch.arange(90) % 3], torch.arange(90) % 3)
    m = calibrant.fit("auto", p)
    row = next(r for r in m.record.ranking if r["method"] == "temperature")
    assert row["status"] == "flagged" and "separable" in row["reason"] and m.record.guard["ok"]


def test_compositions_by_name() -> None:
    p = sample(900, torch.full((4,), 3.0))
    m = calibrant.fit("temperature+histogram_mass", p)
    assert isinstance(m, Chain) and m.record.calibrator == "temperature+histogram_mass"
    with pytest.raises(UnknownNameError, match="isotonic"):
        calibrant.fit("temperature+isotonc", p)
    with pytest.raises(InputError, match="Composition"):
        calibrant.fit("temperature+histogram", p, bins=3)


def test_auto_as_a_calibrator_and_bad_settings() -> None:
    p = sample(300, torch.full((4,), 3.0))
    assert Auto(repeats=1).fit(p).record.ranking
    for bad in ({"budget": 0}, {"folds": 1}, {"repeats": 0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            calibrant.fit("auto", p, **bad)
