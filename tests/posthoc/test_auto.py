"""The automatic choice: right on simulated data, deterministic, within its budget, and it lists what it skipped."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import calibrant
from calibrant.cli import run
from calibrant.errors import InputError, UnknownNameError
from calibrant.functional.scores import reduce
from calibrant.posthoc import _TABLE, CALIBRATORS, Chain, load
from calibrant.posthoc.auto import Auto, Candidate, Unchanged, conclude
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.crossval import HeldOut
from calibrant.posthoc.ets import Ets
from calibrant.posthoc.histogram import Histogram, HistogramMass
from calibrant.posthoc.isotonic import Isotonic
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.temperature import Temperature
from calibrant.posthoc.vector import Vector
from calibrant.types import Predictions
from tests.posthoc.simulated import simulated


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


@pytest.fixture
def whole_table(small_table: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in _TABLE:
        monkeypatch.setitem(CALIBRATORS, cls.name, cls)


def nll(p: Predictions) -> Tensor:
    loss = reduce(p).log_p_label
    assert loss is not None
    return -loss


@pytest.mark.parametrize(
    ("scale", "expected"),
    [(1.0, "identity"), (3.0, "temperature"), (torch.tensor([6.0, 1.0, 2.0, 0.5]), "vector")],
    ids=["calibrated", "one temperature", "one scale per class"],
)
def test_as_many_parameters_as_the_truth_needs(scale: float | Tensor, expected: str) -> None:
    m = calibrant.fit("auto", simulated(2500, scale=scale))
    assert m.record.calibrator == expected and m.record.guard["ok"]


def test_no_worse_than_the_best_single_method_beyond_noise() -> None:
    for seed, scale in enumerate((2.5, torch.tensor([4.0, 1.0, 1.0, 2.0]))):
        p, test = simulated(1500, 4, scale, seed), simulated(5000, 4, scale, seed + 100)
        auto = nll(calibrant.fit("auto", p, seed=seed).predictions(test))
        for name in CALIBRATORS:
            excess = auto - nll(calibrant.fit(name, p).predictions(test))
            assert float(excess.mean()) <= 3 * float(excess.std()) / 5000**0.5


def test_ranking_is_whole_ordered_and_deterministic() -> None:
    p = simulated(800, scale=2.0)
    a, b = (calibrant.fit("auto", p, seed=3, budget=600).record.ranking for _ in range(2))
    assert a == b
    methods = [row["method"] for row in a]
    assert {"identity", *CALIBRATORS, "temperature+histogram_mass", "temperature+isotonic"} <= set(methods)
    values = [row["nll"]["value"] for row in a]
    assert values == sorted(values) and [row["status"] for row in a].count("chosen") == 1
    for row in a:
        assert row["nll"]["low"] < row["nll"]["value"] < row["nll"]["high"]
    assert a[0]["excess"]["value"] == 0 or a[0]["status"] == "flagged"


def test_what_the_budget_cut_is_printed_and_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p = simulated(400, scale=3.0)
    assert calibrant.fit("auto", p, budget=600).record.cut == ""
    little = calibrant.fit("auto", p, budget=1e-6)
    assert "temperature, vector, histogram" in little.record.cut and "1 of 3 times" in little.record.cut
    assert load(little.save(tmp_path / "map")).record.cut == little.record.cut
    assert p.logits is not None
    np.savez(tmp_path / "p.npz", logits=p.logits.numpy(), labels=p.labels.numpy())
    argv = ["fit", str(tmp_path / "p.npz"), "--budget", "1e-6"]
    assert run([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cut"] == little.record.cut
    assert run(argv) == 0
    assert "not tried (temperature, vector" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate with two settings, each fit of which takes a second. All others take no time."""
    seconds = [0.0]

    class Slow(Temperature):
        name = "slow"  # type: ignore[misc]
        candidates = ({"members": "pooled"}, {"members": "each"})  # type: ignore[misc]

        def solve(self, p: Predictions) -> FittedMap:
            seconds[0] += 1
            return super().solve(p)

    monkeypatch.setitem(CALIBRATORS, "slow", Slow)
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])


def test_all_near_candidates_are_repeated_or_none(slow: None) -> None:
    record = calibrant.fit("auto", simulated(400, scale=3.0), budget=15.0).record
    assert {row["repeats"] for row in record.ranking if "repeats" in row} == {1}
    assert "cross-validated 1 of 3 times" in record.cut and "not tried" not in record.cut


def test_a_method_that_ran_is_not_listed_as_untried(slow: None) -> None:
    record = calibrant.fit("auto", simulated(400, scale=3.0), budget=5.0).record
    assert [row["status"] for row in record.ranking if row["method"] == "slow"][1] == "skipped"
    assert "slow with other settings" in record.cut


def top1(n: int, seed: int, slope: float = 1 / 3, shift: float = -0.5) -> Predictions:
    """Predicted labels whose log-odds of being right are a third of what the file says, less a half."""
    g = torch.Generator().manual_seed(seed)
    score = 3 + 2 * torch.randn(n, generator=g, dtype=torch.float64)
    right = torch.rand(n, generator=g, dtype=torch.float64) < torch.sigmoid(slope * score + shift)
    predicted = torch.randint(5, (n,), generator=g)
    labels = torch.where(right, predicted, (predicted + 1) % 5)
    return calibrant.predictions(labels=labels, predicted=predicted, confidence=torch.sigmoid(score))


def test_auto_on_a_top1_set_uses_the_likelihood_of_being_right(whole_table: None) -> None:
    p, test = top1(3000, 0), top1(5000, 1)
    m = calibrant.fit("auto", p)
    assert m.record.calibrator == "platt" and m.record.guard["ok"]
    assert m.summary()["a"] == pytest.approx(1 / 3, abs=0.1)
    tried = {row["method"] for row in m.record.ranking if "nll" in row}
    assert tried == {"identity", *(name for name, cls in CALIBRATORS.items() if cls.takes_top1)}
    after = m.predictions(test)
    assert after.confidence is not None
    right = (test.predicted == test.labels).double()
    loss = torch.nn.functional.binary_cross_entropy(after.confidence, right)
    row = next(r for r in m.record.ranking if r["status"] == "chosen")
    assert row["nll"]["value"] == pytest.approx(float(loss), abs=0.03)
    assert m.record.nll_after == pytest.approx(row["nll"]["value"], abs=0.01)


def test_the_hint_for_a_top1_set_lists_every_method_that_takes_one(whole_table: None) -> None:
    with pytest.raises(InputError, match="use one of auto, ") as found:
        calibrant.fit("temperature", top1(50, 0))
    hinted = str(found.value).partition("use one of auto, ")[2].split(", ")
    for name in CALIBRATORS:
        if name in hinted:
            assert calibrant.fit(name, top1(200, 0)).record.calibrator == name
        else:
            with pytest.raises(InputError, match=f"{name} needs logits"):
                calibrant.fit(name, top1(200, 0))
    assert {"platt", "beta"} < set(hinted)


def test_a_candidate_that_exceeds_the_budget_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock counts a tenth of a millisecond per fitted item, and nothing else."""
    sizes: list[int] = []

    class Slow(Temperature):
        name = "slow"  # type: ignore[misc]

        def solve(self, p: Predictions) -> FittedMap:
            sizes.append(p.n)
            return super().solve(p)

    monkeypatch.setitem(CALIBRATORS, "slow", Slow)
    monkeypatch.setattr(time, "monotonic", lambda: sum(sizes) * 1e-4)
    ranking = calibrant.fit("auto", simulated(8000), budget=3).record.ranking
    row = next(r for r in ranking if r["method"] == "slow")
    assert row["status"] == "skipped" and "would take about" in row["reason"]
    assert sizes == [800]  # a tenth of the items told that all of them would need four seconds


def test_a_method_that_needs_many_items_is_tried_on_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hungry(Temperature):
        name = "hungry"  # type: ignore[misc]

        def solve(self, p: Predictions) -> FittedMap:
            self.need(p.n, 2000, "it is hungry")
            return super().solve(p)

    monkeypatch.setitem(CALIBRATORS, "hungry", Hungry)
    ranking = calibrant.fit("auto", simulated(6000), budget=60).record.ranking
    assert next(r for r in ranking if r["method"] == "hungry").get("repeats")


def conclusion(*candidates: tuple[Calibrator, float, Tensor]) -> Calibrator:
    """What is chosen among calibrators with these numbers of parameters and made-up losses of 400 items."""
    zero = torch.zeros(400, dtype=torch.float64)
    done = [Candidate(calibrator, [HeldOut(loss, zero, None, degrees)]) for calibrator, degrees, loss in candidates]
    return conclude(done, simulated(400), 5).calibrator


BASE = 1 + torch.rand(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("above", "expected"), [(0.0095, Temperature()), (0.0105, Vector())])
def test_one_standard_error_towards_fewer_parameters(above: float, expected: Calibrator) -> None:
    """The fewest parameters among those at most one standard error worse than the best."""
    ripple = torch.ones(400, dtype=torch.float64)
    ripple[::2] = -1  # mean 0; a multiple a of it has the standard error a / 20
    # the error of each mean is 0.014 and more, that of the paired difference 0.2 / 20 = 0.01
    few, best = (Temperature(), 1, BASE + above), (Vector(), 9, BASE + 0.2 * ripple)
    assert conclusion((Unchanged(), 0, BASE + 5), few, best) == expected


def test_rounding_does_not_choose() -> None:
    """A candidate that falls short by rounding alone is as good, and the one with fewer parameters is taken."""
    few, best = (Temperature(), 1, BASE + 1e-15), (Ets(), 4, BASE)
    assert conclusion((Unchanged(), 0, BASE + 1), best, few) == Temperature()


def test_a_candidate_that_cannot_be_fitted_is_listed_with_its_reason() -> None:
    ranking = calibrant.fit("auto", simulated(14)).record.ranking
    failed = {row["method"]: row["reason"] for row in ranking if row["status"] == "failed"}
    assert "at least 15 items" in failed["histogram"]


def test_what_the_guard_flags_is_not_chosen() -> None:
    p = calibrant.predictions(3 * torch.eye(3)[torch.arange(90) % 3], torch.arange(90) % 3)
    m = calibrant.fit("auto", p)
    row = next(r for r in m.record.ranking if r["method"] == "temperature")
    assert row["status"] == "flagged" and "separable" in row["reason"] and m.record.guard["ok"]


def test_compositions_by_name() -> None:
    p = simulated(900, scale=3.0)
    m = calibrant.fit("temperature+histogram_mass", p)
    assert isinstance(m, Chain) and m.record.calibrator == "temperature+histogram_mass"
    with pytest.raises(UnknownNameError, match="isotonic"):
        calibrant.fit("temperature+isotonc", p)
    with pytest.raises(InputError, match="Composition"):
        calibrant.fit("temperature+histogram", p, bins=3)


def test_auto_as_a_calibrator_and_bad_settings() -> None:
    p = simulated(300, scale=3.0)
    assert Auto(repeats=1).fit(p).record.ranking
    for bad in ({"budget": 0}, {"folds": 1}, {"repeats": 0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            calibrant.fit("auto", p, **bad)
