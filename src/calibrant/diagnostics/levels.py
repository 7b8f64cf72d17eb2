"""Calibration by level of adversarial robustness of inputs (AR §3.1, Fig. 1 and 2).

    for each level r:  acc(S_r),  conf(S_r),  ECE(S_r),  variance over runs of p̂ in S_r

AR finds that inputs which are easy to attack are badly calibrated. The levels come from attacking one network. The
predictions come from one run (intervals over items, as in `evaluate`) or from several runs (means with Student's
intervals over runs). The variance needs several runs; its interval is over items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.attacks.measures import median_distance
from calibrant.diagnostics.intervals import student
from calibrant.diagnostics.stability import Of, variance_over_runs
from calibrant.errors import InputError
from calibrant.functional.pooling import pool
from calibrant.functional.scores import reduce
from calibrant.functional.tensors import as_tensor
from calibrant.metrics.conventions import BINS
from calibrant.metrics.evaluate import evaluate
from calibrant.types import SCHEMA, Estimate, Predictions

METRICS = ("accuracy", "gap", "ece")
FEW = 30
"""With fewer items, the ECE of a level is mostly chance, and the table says so."""


@dataclass(frozen=True)
class LevelRow:
    """One level; 0 is the least robust. `confidence` is that of the predicted class; `variance` is None for one run."""

    level: int
    n: int
    accuracy: Estimate
    confidence: Estimate
    gap: Estimate
    ece: Estimate
    variance: Estimate | None = None
    distance: float | None = None  # the level's median, where distances are known

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"level": self.level, "n": self.n, "distance": self.distance}
        for name in ("accuracy", "confidence", "gap", "ece", "variance"):
            found = getattr(self, name)
            out[name] = None if found is None else found.to_dict()
        return out


@dataclass(frozen=True)
class ByLevel:
    """All levels of one predictor, or of several runs of one training."""

    rows: tuple[LevelRow, ...]
    name: str = ""
    runs: int = 1
    of: Of = "true"
    bins: int = BINS

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "runs": self.runs,
            "variance_of": self.of,
            "bins": self.bins,
            "levels": [row.to_dict() for row in self.rows],
        }

    def notes(self) -> list[str]:
        """Sentences that a reader of the table needs."""
        small = min(row.n for row in self.rows)
        over = "items of the level" if self.runs == 1 else f"{self.runs} runs (Student's t)"
        out = [f"Intervals are 95%, over the {over}; ECE has {self.bins} right-closed bins."]
        if self.runs > 1:
            out.append(f"Variance is over {self.runs} runs, of the {WORDS[self.of]}; its interval is over items.")
        if small < FEW:
            out.append(f"A level has {small} items: its ECE is mostly chance.")
        return out


WORDS: dict[Of, str] = {
    "true": "probability of the true class",
    "predicted": "probability of the class that the runs predict together",
    "confidence": "confidence",
    "classes": "probabilities of all classes, added up",
}


def calibration_by_level(
    predictions: Predictions | Sequence[Predictions],
    levels: Any,
    *,
    distance: Any = None,
    of: Of = "true",
    bins: int = BINS,
    intervals: bool = True,
    name: str = "",
) -> ByLevel:
    """Return accuracy, confidence, ECE and variance of each level.

    `levels[i]` (0 … R−1) and `distance[i]` are those of item i; both may be tensors, arrays or lists.
    """
    runs = [predictions] if isinstance(predictions, Predictions) else list(predictions)
    level = _checked(runs, levels)
    far = None if distance is None else as_tensor(distance, "distance").cpu().double()
    if far is not None and far.shape != level.shape:
        raise InputError(f"{far.numel()} distances for {level.numel()} items; give one per item")
    spread = _spread(runs, of) if len(runs) > 1 else None
    rows = []
    for r in range(int(level.max()) + 1):
        where = (level == r).nonzero()[:, 0]
        if len(where) == 0:
            raise InputError(f"no item has level {r}; levels must be 0 … R−1, each with items")
        found = [_measured(run.take(where), bins, intervals and len(runs) == 1) for run in runs]
        accuracy, confidence, gap, ece = ([each[m] for each in found] for m in ("accuracy", "confidence", "gap", "ece"))
        median = None if far is None else median_distance(far[where])
        rows.append(
            LevelRow(
                r,
                len(where),
                _over_runs(accuracy),
                _over_runs(confidence),
                _over_runs(gap, (-1.0, 1.0)),
                _over_runs(ece),
                None if spread is None else student(spread[where].tolist(), "Student's t over items"),
                median,
            )
        )
    return ByLevel(tuple(rows), name or runs[0].source, len(runs), of, bins)


def _measured(p: Predictions, bins: int, intervals: bool) -> dict[str, Estimate]:
    report = evaluate(p, bins=bins, metrics=METRICS, intervals=intervals, allow_reuse=True)
    scale = reduce(p, classwise=False).confidence
    mean = student(scale.tolist(), "Student's t over items") if intervals else Estimate(float(scale.mean()))
    return {**{m: report[m] for m in METRICS}, "confidence": mean}


def _over_runs(found: Sequence[Estimate], within: tuple[float, float] = (0.0, 1.0)) -> Estimate:
    if len(found) == 1:
        return found[0]
    return student([e.value for e in found if e.value is not None], f"Student's t over {len(found)} runs", within)


def _spread(runs: Sequence[Predictions], of: Of) -> Tensor:
    pooled = []
    for run in runs:
        if run.logits is None:
            raise InputError("variance over runs needs probabilities of every class; a top-1 file has none")
        pooled.append(run.logits if run.logits.ndim == 2 else pool(run.logits))
    return variance_over_runs(torch.stack([p.double() for p in pooled]), runs[0].labels, of).cpu()


def _checked(runs: Sequence[Predictions], levels: Any) -> Tensor:
    if not runs:
        raise InputError("calibration_by_level was given no predictions")
    for m, run in enumerate(runs):
        if not isinstance(run, Predictions):
            kind = type(run).__name__
            raise InputError(f"run {m} is a {kind}; pass calibrant.predictions(logits, labels), or a list of them")
        if run.n != runs[0].n or not torch.equal(run.labels.cpu(), runs[0].labels.cpu()):
            raise InputError(f"run {m} is about other items than run 0: their labels differ")
    given = as_tensor(levels, "levels").cpu()
    level = given.long().reshape(-1)
    if not torch.equal(given.reshape(-1).double(), level.double()):
        raise InputError("levels must be whole numbers; calibrant.levels(distance, R) cuts distances into them")
    if len(level) != runs[0].n:
        raise InputError(f"{len(level)} levels for {runs[0].n} predictions; give one per item")
    if int(level.min()) < 0:
        raise InputError(f"levels must be 0 … R−1, found {int(level.min())}")
    return level
