"""The guard flags a map that makes things worse, and no other; its figures are compared with oracles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import calibrant
from calibrant.errors import RefusedError, SplitError
from calibrant.functional.scores import reduce
from calibrant.posthoc import CALIBRATORS
from calibrant.posthoc.calibrator import Calibrator, Composition
from calibrant.posthoc.crossval import Folds, auroc_within, folds_of, held_out, mean_of
from calibrant.posthoc.guard import guard, sentence
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.temperature import Temperature
from calibrant.posthoc.toplabel import Top, TopLabelMap
from calibrant.types import Predictions
from tests.posthoc.simulated import simulated


@dataclass(frozen=True, eq=False)
class LiarMap(FittedMap):
    """Promises to keep the label, and rolls the classes."""

    method: ClassVar[str] = "liar"
    keeps_label: ClassVar[bool] = True

    def transform(self, logits: Tensor) -> Tensor:
        return logits.roll(1, -1)


@dataclass(frozen=True, eq=False)
class MemoryMap(FittedMap):
    """Leaves the items it was fitted on alone and is too sure of all others: only held-out items show this overfit."""

    seen: Tensor
    method: ClassVar[str] = "memory"
    keeps_label: ClassVar[bool] = True

    def transform(self, logits: Tensor) -> Tensor:
        known = torch.isin(logits[..., 0], self.seen)[..., None]
        return torch.where(known, logits, logits * 10)


@dataclass(frozen=True, eq=False)
class BoastMap(TopLabelMap):
    """Halves the probability of an error, so that order and labels stay but the confidence is too high."""

    method: ClassVar[str] = "boast"

    def confidence(self, top: Top) -> Tensor:
        return (1 + top.confidence) / 2


@dataclass(frozen=True)
class Making(Calibrator):
    """Returns whatever `make` makes of the predictions."""

    make: Callable[[Predictions], FittedMap]
    name: ClassVar[str] = "making"
    map: ClassVar[type[FittedMap]] = FittedMap
    takes_top1: ClassVar[bool] = True

    def solve(self, p: Predictions) -> FittedMap:
        return self.make(p)


LIAR = Making(lambda p: LiarMap())
MEMORY = Making(lambda p: MemoryMap(p.logits[:, 0]))  # type: ignore[index]
BOAST = Making(lambda p: BoastMap())


def test_a_good_map_is_ok_with_its_gain() -> None:
    m = calibrant.fit("temperature", simulated(scale=3.0))
    g = m.record.guard
    assert g["ok"] and g["reasons"] == [] and g["nll_change"]["high"] < 0
    assert "falls by" in sentence(g)
    assert m.record.nll_before is not None and m.record.nll_after is not None
    assert m.record.nll_after < m.record.nll_before


def test_overfitting_is_flagged_although_the_fit_itself_looks_perfect() -> None:
    p = simulated()
    fitted = MEMORY.fit(p)
    assert torch.equal(fitted(p.logits), p.logits)  # type: ignore[arg-type]
    v = guard(MEMORY, p)
    assert not v.ok and "held-out NLL rises" in v.reasons[0]


def test_a_broken_promise_is_flagged() -> None:
    v = guard(LIAR, simulated())
    assert any("labels changed although" in r for r in v.reasons)


def test_lost_refinement_is_flagged_and_strict_refuses() -> None:
    p = simulated(4000, scale=3.0)
    with pytest.raises(RefusedError, match="AUROC of confidence falls") as caught:
        calibrant.fit("histogram", p, bins=2, strict=True)
    assert caught.value.exit_code == 1
    m = calibrant.fit("histogram", p, bins=2)
    assert not m.record.guard["ok"]


def test_too_few_items_to_know_is_flagged() -> None:
    m = calibrant.fit("temperature", torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1]))
    assert not m.record.guard["ok"] and "could not be cross-validated" in m.record.guard["reasons"][0]


def test_false_alarms_are_rare_on_calibrated_data() -> None:
    flagged = [s for s in range(30) if not guard(Temperature(), simulated(600, seed=s), seed=s).ok]
    assert len(flagged) <= 3


def test_folds_are_stratified_seeded_and_keep_groups() -> None:
    p = simulated(500)
    a, b, c = folds_of(p, 5, 0), folds_of(p, 5, 0), folds_of(p, 5, 1)
    assert torch.equal(a, b) and not torch.equal(a, c)
    for label in range(4):
        counts = torch.bincount(a[p.labels == label], minlength=5)
        assert int(counts.max() - counts.min()) <= 1
    grouped = calibrant.predictions(p.logits, p.labels, group=torch.arange(500) // 10)
    f = folds_of(grouped, 5, 0)
    assert all(len(set(f[i : i + 10].tolist())) == 1 for i in range(0, 500, 10))


def test_held_out_figures_by_a_naive_loop() -> None:
    p = simulated(60, scale=2.0)
    folds = Folds(p, 3, 0)
    found, fold = held_out(Temperature(), folds), folds.of_item
    for i in range(60):
        rest = p.take((fold != fold[i]).nonzero()[:, 0])
        T = Temperature().solve(rest).summary()["temperature"]
        z = [float(v) / T for v in p.logits[i]]  # type: ignore[index]
        expected = math.log(sum(math.exp(v) for v in z)) - z[int(p.labels[i])]
        assert float(found.loss[i]) == pytest.approx(expected, rel=1e-9)


def test_auroc_and_its_variance() -> None:
    """AUROC is scikit-learn's; the influence's variance is the spread over fresh samples."""
    s = reduce(simulated(800))
    area, influence = auroc_within(s, torch.arange(s.n)[None])
    assert area == pytest.approx(roc_auc_score(s.correct.numpy(), s.confidence.numpy()), abs=1e-12)
    assert float(influence.mean()) == pytest.approx(0, abs=1e-12)
    areas, errors = [], []
    for seed in range(200):
        a, i = auroc_within(reduce(simulated(300, seed=seed)), torch.arange(300)[None])
        areas.append(a)
        half = mean_of(i, None)
        errors.append((half.high - half.low) / 2 / 1.96)  # type: ignore[operator]
    assert np.mean(errors) == pytest.approx(np.std(areas), rel=0.2)


def test_auroc_within_folds_of_different_size() -> None:
    """The mean over folds, weighted by their items; a fold without errors has no AUROC and does not count."""
    s = reduce(simulated(60, scale=0.1, seed=1))
    right, wrong = (s.correct == 1).nonzero()[:, 0], (s.correct == 0).nonzero()[:, 0]
    folds = [torch.cat([right[:4], wrong[:3]]), torch.cat([right[4:15], wrong[3:5]]), right[15:21]]
    s = s.take(torch.cat(folds))
    rows = torch.arange(s.n).split([len(f) for f in folds])
    area, influence = auroc_within(s, pad_sequence(rows, batch_first=True, padding_value=s.n))
    each = [roc_auc_score(s.correct[i].numpy(), s.confidence[i].numpy()) for i in rows[:2]]
    assert 0.4 < each[0] != each[1] < 1
    assert area == pytest.approx((7 * each[0] + 13 * each[1]) / 20, abs=1e-12)
    assert not influence[rows[2]].any() and influence[rows[1]].any()


def test_standard_errors_count_groups() -> None:
    x = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alone, tripled = mean_of(x, None), mean_of(x.repeat_interleave(3), torch.arange(40).repeat_interleave(3))
    assert tripled.low == pytest.approx(alone.low) and tripled.high == pytest.approx(alone.high)


def test_fitting_on_test_is_an_error_unless_allowed() -> None:
    p = simulated(200)
    z, y = p.logits, p.labels
    for method in ("temperature", "auto"):
        with pytest.raises(SplitError, match="allow_reuse"):
            calibrant.fit(method, z, y, split="test")
    m = calibrant.fit("temperature", z, y, split="test", allow_reuse=True)
    assert m.record.reuse and m.record.split == "test"


def test_reporting_on_what_was_fitted_is_an_error() -> None:
    p = simulated(200)
    m = calibrant.fit("temperature", p)
    with pytest.raises(SplitError):
        calibrant.evaluate(m.predictions(p))
    calibrant.evaluate(m.predictions(p), allow_reuse=True, intervals=False)
    calibrant.evaluate(m.predictions(simulated(200, seed=9)), intervals=False)
    with pytest.raises(SplitError, match="already"):
        calibrant.fit("histogram", m.predictions(p))


def test_a_top1_set_is_guarded_by_the_likelihood_of_being_right() -> None:
    g = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(800, generator=g, dtype=torch.float64)
    labels = (torch.rand(800, generator=g, dtype=torch.float64) > confidence).long()
    p = Predictions(labels=labels, predicted=torch.zeros(800, dtype=torch.long), confidence=confidence)
    boast = guard(BOAST, p)
    assert not boast.ok and "NLL rises" in boast.reasons[0]
    overconfident = replace(p, confidence=1 - (1 - confidence) / 5)
    assert not any("NLL" in reason for reason in guard(CALIBRATORS["isotonic"](), overconfident).reasons)


def test_a_composition_starts_from_the_refits_of_its_first_part() -> None:
    """The refits are shared between candidates, and equal to fitting both maps again."""
    folds = Folds(simulated(300, scale=2.0), 4, 0)
    both = Composition(Temperature(), CALIBRATORS["histogram_mass"]())
    first = folds.refits(Temperature())
    shared, plain = folds.refits(both), Calibrator.refits(both, folds.p, folds.of_item)
    for f, (a, b) in enumerate(zip(shared, plain, strict=True)):
        assert a.maps[0] is first[f] and a.summary() == b.summary()  # type: ignore[attr-defined]
