"""From the logits of cells to numbers: how accuracy, calibration and refinement fall under shift.

A corruption breaks a model at the first severity where the paired 95% interval of the accuracy lost against clean lies
above `tolerance`. Calibrators are fitted on clean calibration data and applied to every cell, as they would be in use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.diagnostics.stress.cells import Cell
from calibrant.diagnostics.stress.store import Arrays
from calibrant.functional import novelty
from calibrant.functional.inputs import predictions
from calibrant.functional.scores import Scores, reduce
from calibrant.metrics import consistency
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.corruption import CorruptionReport, Key, cell_values, corruption_report
from calibrant.metrics.corruption_intervals import item_means
from calibrant.metrics.entropy_divergence import Binning
from calibrant.metrics.evaluate import evaluate
from calibrant.metrics.ood import OODReport, ood_report
from calibrant.metrics.panel import Panel
from calibrant.posthoc.map import FittedMap
from calibrant.shifts import PERTURBATIONS
from calibrant.shifts.frequency import FREQUENCIES
from calibrant.types import Estimate, Predictions, Report, Split

TOLERANCE = 0.10
"""The accuracy that a model may lose before it counts as broken."""

SHIFT_METRICS = ("accuracy", "nll", "brier", "ece", "ece_mass", "auroc", "aurc", "gap")
NO_CALIBRATOR = "none"


@dataclass(frozen=True)
class Broken:
    """One type of corruption: the severity that breaks the model (None: no severity), and the accuracy left there."""

    type: str
    severity: int | None
    accuracy: float
    loss: float  # accuracy lost against clean at that severity, or at the worst one


@dataclass(frozen=True)
class Outcome:
    """The numbers of a stress run; None or empty where a suite was not asked for."""

    clean: Report
    clean_predictions: Predictions
    corruptions: CorruptionReport | None = None
    broken: tuple[Broken, ...] = ()
    calibrators: Mapping[str, Mapping[int, Mapping[str, float | None]]] = field(default_factory=dict)
    ood: Mapping[str, OODReport] = field(default_factory=dict)
    entropies: Mapping[str, Tensor] = field(default_factory=dict)  # by foreign set; "" is clean
    natural: Mapping[str, Report] = field(default_factory=dict)
    perturbations: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    frequency: Mapping[float, Estimate] = field(default_factory=dict)  # accuracy
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"clean": self.clean.to_dict()}
        if self.corruptions is not None:
            out["corruptions"] = self.corruptions.to_dict()
            out["breaks"] = [vars(b) for b in self.broken]
        if self.calibrators:
            out["calibrators"] = {m: {str(s): dict(r) for s, r in rows.items()} for m, rows in self.calibrators.items()}
        for name in ("ood", "natural"):
            if getattr(self, name):
                out[name] = {key: report.to_dict() for key, report in getattr(self, name).items()}
        if self.perturbations:
            out["perturbations"] = {
                n: {m: e.to_dict() for m, e in row.items()} for n, row in self.perturbations.items()
            }
        if self.frequency:
            out["frequency"] = {f"{at:.4g}": accuracy.to_dict() for at, accuracy in self.frequency.items()}
        return out | {"notes": list(self.notes)}


def analyse(
    cells: Mapping[Cell, Arrays],
    *,
    raw: bool = True,
    classes: tuple[str, ...] | None = None,
    maps: Mapping[str, FittedMap] | None = None,
    reference: Mapping[Key, Arrays] | None = None,
    tolerance: float = TOLERANCE,
    binning: Binning = Binning(),  # noqa: B008
    resampling: Resampling | None = Resampling(),  # noqa: B008
    notes: tuple[str, ...] = (),
) -> Outcome:
    """Return the numbers of all cells. `maps` are fitted calibrators, `reference` another model's corruption cells."""
    predicted = {
        cell: predictions_of(arrays, raw, classes)
        for cell, arrays in cells.items()
        if cell.kind not in ("outside", "perturbation")
    }
    clean = predicted[Cell("clean")]
    corrupted = {(c.name, c.severity): p for c, p in predicted.items() if c.kind == "corruption"}
    report: CorruptionReport | None = None
    broken: tuple[Broken, ...] = ()
    scores = {key: reduce(p, classwise=False) for key, p in corrupted.items()}
    clean_scores = reduce(clean, classwise=False)
    if scores:
        against = None
        if reference is not None:
            against = {k: reduce(predictions_of(a, True, None), classwise=False) for k, a in reference.items()}
        report = corruption_report(scores, against, resampling=resampling)
        broken = breaks(clean_scores, scores, tolerance)
    ood, entropies = foreign(cells, raw, clean, binning, resampling)
    return Outcome(
        clean=judged(clean, resampling),
        clean_predictions=clean,
        corruptions=report,
        broken=broken,
        calibrators={} if maps is None else calibrated(clean, corrupted, maps),
        ood=ood,
        entropies=entropies,
        natural={c.name: judged(p, resampling) for c, p in predicted.items() if c.kind == "natural"},
        perturbations={
            cell.name: steadiness(cell.name, arrays, resampling)
            for cell, arrays in cells.items()
            if cell.kind == "perturbation"
        },
        frequency={
            FREQUENCIES[c.severity - 1]: judged(p, resampling, ("accuracy",))["accuracy"]
            for c, p in predicted.items()
            if c.kind == "frequency"
        },
        notes=notes,
    )


def judged(p: Predictions, resampling: Resampling | None, metrics: Sequence[str] = SHIFT_METRICS) -> Report:
    if resampling is None:
        return evaluate(p, metrics=metrics, intervals=False)
    return evaluate(p, metrics=metrics, seed=resampling.seed, replicates=resampling.replicates)


def predictions_of(
    arrays: Arrays, raw: bool, classes: tuple[str, ...] | None, split: Split = Split.TEST
) -> Predictions:
    return predictions(arrays["logits"], arrays["labels"], raw=raw, classes=classes, split=split)


def breaks(clean: Scores, cells: Mapping[Key, Scores], tolerance: float) -> tuple[Broken, ...]:
    """Return every type of corruption, sorted by the severity that breaks the model, then by the accuracy left."""
    base = (clean.predicted == clean.labels).double()
    out = []
    for name in dict.fromkeys(c for c, _ in cells):
        rows = sorted((s, scores) for (c, s), scores in cells.items() if c == name)
        losses = [(s, *_loss(base, clean, scores)) for s, scores in rows]
        first = next((row for row in losses if row[2] - 1.96 * row[3] > tolerance), None)
        severity, accuracy, loss, _ = first or min(losses, key=lambda row: row[1])
        out.append(Broken(name, severity if first else None, accuracy, loss))
    return tuple(sorted(out, key=lambda b: (b.severity or math.inf, b.accuracy)))


def _loss(base: Tensor, clean: Scores, scores: Scores) -> tuple[float, float, float]:
    """Return (accuracy, accuracy lost against clean, its standard error); paired where the items are the same."""
    right = (scores.predicted == scores.labels).double()
    lost = float(base.mean() - right.mean())
    if scores.n == clean.n and torch.equal(scores.labels, clean.labels):
        error = float((base - right).std()) / math.sqrt(scores.n) if scores.n > 1 else math.inf
    else:
        error = math.sqrt(float(base.var()) / len(base) + float(right.var()) / len(right))
    return float(right.mean()), lost, error


def calibrated(
    clean: Predictions, corrupted: Mapping[Key, Predictions], maps: Mapping[str, FittedMap]
) -> dict[str, dict[int, dict[str, float | None]]]:
    """Return calibrator → severity (0: clean) → accuracy, NLL, ECE, AUROC, averaged over the types at that severity."""
    out: dict[str, dict[int, dict[str, float | None]]] = {}
    for name, fitted in {NO_CALIBRATOR: None, **maps}.items():
        by_severity: dict[int, list[dict[str, float | None]]] = {}
        for (_, severity), p in {("", 0): clean, **corrupted}.items():
            mapped = p if fitted is None else fitted.predictions(p)
            by_severity.setdefault(severity, []).append(cell_values(Panel(reduce(mapped, classwise=False))))
        out[name] = {s: _average(rows) for s, rows in sorted(by_severity.items())}
    return out


def _average(rows: list[dict[str, float | None]]) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        known = [v for v in values if v is not None]
        out[name] = math.fsum(known) / len(known) if len(known) == len(values) else None
    return out


def steadiness(name: str, arrays: Arrays, resampling: Resampling | None) -> dict[str, Estimate]:
    """Return consistency, cross-entropy consistency, relative confidence (SS Eq. 37–39) and flip rate."""
    logits, labels = arrays["logits"].transpose(0, 1), arrays["labels"]
    against: Literal["previous", "first"] = "first" if PERTURBATIONS[name].unordered else "previous"
    items = {
        "consistency": consistency.consistency(logits),
        "cross_entropy_consistency": consistency.cross_entropy_consistency(logits),
        "relative_confidence": consistency.relative_confidence(logits, labels).mean(0),
        "flip_rate": consistency.flip_rate(logits, against),
    }
    return item_means(items, resampling)


def foreign(
    cells: Mapping[Cell, Arrays], raw: bool, clean: Predictions, binning: Binning, resampling: Resampling | None
) -> tuple[dict[str, OODReport], dict[str, Tensor]]:
    """Return the OOD report of each foreign set against the clean test items, and the entropies for its figure."""
    sets = {cell.name: arrays for cell, arrays in cells.items() if cell.kind == "outside"}
    if not sets or clean.k is None:
        return {}, {}
    inside = novelty_values(cells[Cell("clean")], raw)
    reports, entropies = {}, {"": inside["entropy"]}
    for name, arrays in sets.items():
        values = novelty_values(arrays, raw)
        entropies[name] = values["entropy"]
        both = {score: (inside[score], values[score]) for score in inside if score in values}
        reasons = {}
        if "energy" not in both:
            pooled = "needs the network's raw logits; those of an ensemble are pooled"
            reasons = {"energy": pooled, "max_logit": pooled}
        if "mutual_information" not in both:
            reasons["mutual_information"] = "needs the members of an ensemble"
        pair = (inside["entropy"], values["entropy"])
        reports[name] = ood_report(both, reasons, pair, clean.k, binning, resampling)
    return reports, entropies


def novelty_values(arrays: Arrays, raw: bool) -> dict[str, Tensor]:
    """Return every novelty score that a cell's arrays allow."""
    logits = arrays["logits"]
    total = novelty.entropy(logits)
    out = {"max_probability": novelty.max_probability(logits), "entropy": total}
    if "member_entropy" in arrays:
        out["mutual_information"] = (total - arrays["member_entropy"]).clamp_min(0)
    if raw:
        out |= {"energy": novelty.energy(logits), "max_logit": novelty.max_logit(logits)}
    return out
