"""Advice on what to do next: fit candidates on calibration data, judge them on other items, and recommend one.

Without calibration data, candidates are fitted on a seeded half of the predictions and judged on the other half, and
the advice says so. Differences are paired over items and have intervals (`metrics.compare`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from calibrant.errors import InputError
from calibrant.files.paths import partner
from calibrant.metrics.compare import Comparison, compare
from calibrant.metrics.evaluate import evaluate
from calibrant.posthoc import overlap
from calibrant.posthoc.auto import Auto, Choice, Unchanged
from calibrant.posthoc.calibratability import Calibratability, calibratability
from calibrant.posthoc.calibrator import Calibrator, refuse_test
from calibrant.posthoc.crossval import folds_of
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.temperature import Temperature
from calibrant.types import Estimate, Predictions, Report

METRICS = ("nll", "ece", "brier", "auroc", "accuracy")
BEFORE = "as it is"
GRID_NUMBERS = 100_000
"""Up to this many logits, the search for the least ECE over 1,000 temperatures takes about a second."""


@dataclass(frozen=True)
class Tried:
    """One map on items it was not fitted on."""

    method: str
    report: Report
    change: Comparison | None  # compared with the predictions as they are
    flags: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        out: dict[str, Any] = {"method": self.method}
        out |= {name: self.report[name].to_dict() for name in METRICS}
        if self.change is not None:
            out |= {f"{name} verdict": self.change[name].verdict for name in ("nll", "ece", "auroc")}
        out["flags"] = "; ".join(self.flags) or None
        return out


@dataclass(frozen=True)
class Advice:
    """`sentence` recommends a candidate, `rows` compare all of them, and `how` says on which items."""

    sentence: str
    chosen: str
    how: str
    tried: tuple[Tried, ...]
    ranking: tuple[Mapping[str, Any], ...] = ()
    room: Calibratability | None = None  # an oracle: the best that each family can reach on the judged items
    command: str | None = None
    fitted: FittedMap | None = field(default=None, compare=False)
    before: Predictions | None = field(default=None, compare=False, repr=False)  # the items that were judged
    after: Predictions | None = field(default=None, compare=False, repr=False)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [t.row() for t in self.tried]

    def to_dict(self) -> dict[str, Any]:
        return {
            "sentence": self.sentence,
            "chosen": self.chosen,
            "how": self.how,
            "rows": self.rows,
            "ranking": [dict(row) for row in self.ranking],
            "room": None if self.room is None else self.room.to_dict(),
            "command": self.command,
        }


def advise(
    predictions: Predictions,
    calibration: Predictions | None = None,
    *,
    seed: int = 0,
    budget: float = 10.0,
    allow_reuse: bool = False,
) -> Advice:
    """Fit candidates on `calibration` (or on a seeded half), judge them on the other items, and recommend one."""
    if predictions.logits is None:
        raise InputError(
            f"{predictions.source or 'these predictions'}: advice needs logits or probabilities, not a top-1 file"
        )
    beside = partner(predictions.source) if calibration is None and predictions.source else None
    named = (calibration.source if calibration is not None else beside) or "CALIBRATION"
    held_out = shlex.quote(str(named))
    if calibration is None:
        calibration, test = halves(predictions, seed)
        how = (
            f"fitted on a random half ({calibration.n:,} items, seed {seed}), judged on the other ({test.n:,} items); "
            "give separate calibration data to judge on all of them"
        )
    else:
        refuse_test(calibration, allow_reuse)
        same_classes(predictions, calibration)
        test = predictions
        how = (
            f"fitted on {calibration.source or 'the calibration data'} ({calibration.n:,} items), judged on {test.n:,}"
        )
    choice = Auto(budget=budget, seed=seed).choose(calibration)
    how += f"; {choice.cut}" if choice.cut else ""
    calibrators: dict[str, Calibrator] = {"temperature": Temperature(), choice.calibrator.name: choice.calibrator}
    tried = [Tried(BEFORE, evaluate(test, metrics=METRICS, seed=seed, allow_reuse=True), None)]
    maps: dict[str, FittedMap] = {}
    for name, calibrator in calibrators.items():
        if not isinstance(calibrator, Unchanged):
            maps[name] = calibrator.fit(calibration, allow_reuse=True)
            tried.append(_tried(name, maps[name].predictions(test), test, choice, seed))
    sentence, chosen = recommend(tried, choice)
    fitted = maps.get(chosen)
    return Advice(
        sentence=sentence,
        chosen=chosen,
        how=how,
        tried=tuple(tried),
        ranking=choice.ranking,
        room=calibratability(test, ece_grid=test.n * (test.k or 1) <= GRID_NUMBERS),
        command=None if fitted is None else f"calibrant fit {held_out} --method {chosen} -o map",
        fitted=fitted,
        before=test,
        after=None if fitted is None else fitted.predictions(test),
    )


def recommend(tried: list[Tried], choice: Choice) -> tuple[str, str]:
    """Return a sentence and the name it recommends: the automatic choice, if it helps on the judged items."""
    name = choice.calibrator.name
    if isinstance(choice.calibrator, Unchanged):
        if any("nll" in row for row in choice.ranking if row["method"] != name):
            return "Leave the confidence as it is: no map improves held-out NLL beyond noise.", BEFORE
        name = Temperature.name  # nothing was cross-validated within the budget, but temperature is always judged
    best = next(t for t in tried if t.method == name)
    before = tried[0].report
    assert best.change is not None
    if best.change["nll"].verdict == "worse":
        return f"Leave the confidence as it is: {best.method} was chosen, but on the judged items NLL is worse.", BEFORE
    if best.change["nll"].verdict != "better":
        return f"Leave the confidence as it is: what {best.method} gains on the judged items is within noise.", BEFORE
    gains = [
        f"{title} {_from_to(before[name], best.report[name], style)}"
        for name, title, style in (("nll", "NLL", ".4f"), ("ece", "ECE", ".2%"))
    ]
    ranking = best.change["auroc"].verdict or "cannot be judged"
    order = (
        "the ranking of errors is kept"
        if ranking not in ("better", "worse")
        else f"the ranking of errors gets {ranking}"
    )
    return f"Use {best.method}: {gains[0]}, beyond noise; {gains[1]}; {order}.", best.method


def halves(p: Predictions, seed: int) -> tuple[Predictions, Predictions]:
    """Two random halves from a seed. Labels are spread evenly, and groups stay whole."""
    fold = folds_of(p, 2, seed)
    return p.take((fold == 0).nonzero()[:, 0]), p.take((fold == 1).nonzero()[:, 0])


def same_classes(p: Predictions, calibration: Predictions) -> None:
    """Refuse calibration data that have other classes than p, or hold the same items."""
    if calibration.k != p.k:
        raise InputError(
            f"{calibration.source or 'the calibration data'} has {calibration.k} classes, "
            f"{p.source or 'the predictions'} {p.k}; they must be of the same model"
        )
    same = calibration.n == p.n and overlap.share(overlap.sketch(calibration), p) >= overlap.SAME
    if same or calibration.fingerprint() == p.fingerprint():
        raise InputError(
            f"{calibration.source or 'the calibration data'} holds the very items that are judged; "
            "leave it out to use a random half of them, or give other items"
        )


def _tried(name: str, after: Predictions, before: Predictions, choice: Choice, seed: int) -> Tried:
    report = evaluate(after, metrics=METRICS, seed=seed, allow_reuse=True)
    row = next((r for r in choice.ranking if r["method"] == name), {})
    flags = (row["reason"],) if row.get("status") == "flagged" else ()
    return Tried(name, report, compare(before, after, metrics=METRICS, seed=seed, names=(BEFORE, name)), flags)


def _from_to(a: Estimate, b: Estimate, style: str) -> str:
    if a.value is None or b.value is None:
        return "does not exist"
    return f"{a.value:{style}} → {b.value:{style}}"
