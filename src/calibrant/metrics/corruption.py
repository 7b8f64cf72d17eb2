"""One number for many corruptions of the same items: plain means (SS §3.1), and means relative to a reference model
(SS Eq. 34–36).

    mean_error, mean_nll, mean_ece, mean_auroc      averages over types and severities, for the model alone
    mce, mcnll, mcece      (1/|C|) Σ_c [ Σ_s E_{s,c} / Σ_s E_{s,c} of the reference ],   E = error, NLL, ECE

The paper calls both versions mCNLL; here the plain mean is `mean_nll` and the normalised one is `mcnll`.

A *cell* is one type at one severity. All cells show the same images, so an item is resampled in all of them at once.
Error, NLL and their ratios have BCa intervals. ECE has a test inversion over all cells (`corruption_intervals`). AUROC
uses the influence of each item, summed over cells. The interval of mCECE takes the reference's ECEs as given, like
those of a published table, because no interval of a ratio of two noisy ECEs covers. Coverage is measured in
docs/coverage_shift.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from calibrant.errors import InputError
from calibrant.functional.scores import Scores
from calibrant.metrics import METRICS
from calibrant.metrics.bca import influence
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.corruption_intervals import Aggregate, BinnedItems, Cell, estimates
from calibrant.metrics.evaluate import point_estimates
from calibrant.metrics.panel import Panel
from calibrant.types import SCHEMA, Estimate, jsonable

Key = tuple[str, int]
"""(type, severity)."""

CELL_METRICS = ("accuracy", "nll", "ece", "auroc")
NORMALISED = {"error": "mce", "nll": "mcnll", "ece": "mcece"}
BY_TYPE = {"error": "ce", "nll": "cnll", "ece": "cece"}
NO_NLL = "some cell has no NLL: a label was called impossible (logit -inf), or it is a top-1 set"


@dataclass(frozen=True)
class CorruptionReport:
    """`report.means["mean_nll"]`, `report.normalised["mce"]`, `report.by_severity[3]["error"]`, `report.by_type`."""

    cells: Mapping[Key, Mapping[str, float | None]]
    means: Mapping[str, Estimate]
    by_severity: Mapping[int, Mapping[str, Estimate]]
    by_type: Mapping[str, Mapping[str, Estimate]]
    normalised: Mapping[str, Estimate] = field(default_factory=dict)
    n: int = 0
    conventions: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "n": self.n,
            "means": _plain(self.means),
            "normalised": _plain(self.normalised),
            "by_severity": {str(s): _plain(row) for s, row in self.by_severity.items()},
            "by_type": {c: _plain(row) for c, row in self.by_type.items()},
            "cells": {f"{c}-{s}": dict(row) for (c, s), row in self.cells.items()},
            "conventions": dict(self.conventions),
        }

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(jsonable(self.to_dict()), indent=indent, ensure_ascii=False, allow_nan=False)


def _plain(row: Mapping[str, Estimate]) -> dict[str, Any]:
    return {name: estimate.to_dict() for name, estimate in row.items()}


def corruption_report(
    cells: Mapping[Key, Scores],
    reference: Mapping[Key, Scores] | None = None,
    *,
    resampling: Resampling | None = None,
) -> CorruptionReport:
    """The aggregates of one predictor, from its `Scores` by (type, severity). All hold the same items in one order."""
    checked(cells, reference)
    types, severities = list(dict.fromkeys(c for c, _ in cells)), sorted({s for _, s in cells})
    panels = {key: Panel(scores) for key, scores in cells.items()}
    held = {key: cell_of(panel, resampling is not None) for key, panel in panels.items()}
    of_type = {c: [key for key in cells if key[0] == c] for c in types}
    wanted: dict[tuple[str, Any], dict[str, Aggregate]] = {("all", None): _means(held.values(), "mean_")}
    wanted |= {("severity", s): _means(held[key] for key in cells if key[1] == s) for s in severities}
    wanted |= {("type", c): _means(held[key] for key in of_type[c]) for c in types}
    wanted["normalised", None] = {}
    absent: dict[str, Estimate] = {}
    if reference is not None:
        base = {key: cell_of(Panel(reference[key]), resampling is not None) for key in cells}
        for name, title in NORMALISED.items():
            if any(name not in cell for cell in (*held.values(), *base.values())):
                absent[title] = Estimate(None, reason=NO_NLL)
                continue
            ratios = [(tuple(held[k] for k in keys), tuple(base[k] for k in keys)) for keys in of_type.values()]
            wanted["normalised", None][title] = Aggregate(name, tuple(ratios))
            for c, ratio in zip(types, ratios, strict=True):
                wanted["type", c][BY_TYPE[name]] = Aggregate(name, (ratio,))
    flat = {(where, name): term for where, row in wanted.items() for name, term in row.items()}
    first = next(iter(cells.values()))
    found = estimates(flat, first.n, first.group, resampling)
    rows = {where: {name: found[where, name] for name in row} for where, row in wanted.items()}
    return CorruptionReport(
        cells={key: cell_values(panel) for key, panel in panels.items()},
        means=rows["all", None],
        by_severity={s: rows["severity", s] for s in severities},
        by_type={c: rows["type", c] for c in types},
        normalised=rows["normalised", None] | absent,
        n=first.n,
        conventions={
            "types": types,
            "severities": severities,
            "means": "plain averages over types and severities (SS §3.1)",
            "normalised": None if reference is None else "mean over types of Σ_s / Σ_s of the reference (SS Eq. 34–36)",
            "interval": None if resampling is None else resampling.describe("items, jointly over all cells"),
        },
    )


def checked(cells: Mapping[Key, Scores], reference: Mapping[Key, Scores] | None) -> None:
    """Raise an error unless all cells hold the same items and the reference has every cell."""
    if not cells:
        raise InputError("no cells: at least one corruption at one severity is needed")
    for name, held in (("the model", cells), ("the reference", reference or {})):
        first = next(iter(cells.values()))
        for (c, s), scores in held.items():
            if scores.n != first.n or not torch.equal(scores.labels, first.labels):
                raise InputError(
                    f"{name}, {c} at severity {s}: not the same items in the same order as the other cells; "
                    "every cell must show the same images"
                )
    if reference is not None:
        missing = [f"{c} at severity {s}" for c, s in cells if (c, s) not in reference]
        if missing:
            raise InputError(f"the reference lacks {missing[0]} ({len(missing)} cells); both need the same suite")


def cell_values(panel: Panel) -> dict[str, float | None]:
    """Accuracy, NLL, ECE and AUROC of one cell; None where a value does not exist."""
    return {name: e.value for name, e in point_estimates([METRICS[name] for name in CELL_METRICS], panel).items()}


def cell_of(panel: Panel, intervals: bool) -> Cell:
    """What aggregates need from a cell: error, NLL and AUROC of each item, and the bins of ECE."""
    scores = panel.scores
    cell: Cell = {"error": (scores.predicted != scores.labels).double()}
    if METRICS["nll"].missing(panel) is None:
        assert scores.log_p_label is not None
        cell["nll"] = -scores.log_p_label.double()
    cell["ece"] = BinnedItems.of(panel)
    if (auroc := METRICS["auroc"]).missing(panel) is None:
        value = float(auroc(panel))
        # an item's pseudo-value: their mean is AUROC, and their deviations from it are the influences
        moved = panel.n * influence(auroc, panel) if intervals else torch.zeros(panel.n, dtype=torch.float64)
        cell["auroc"] = value + moved
    return cell


def _means(cells: Iterable[Cell], prefix: str = "") -> dict[str, Aggregate]:
    """The mean of each metric over these cells, for metrics that every cell has."""
    rows = tuple(cells)
    return {f"{prefix}{name}": Aggregate(name, ((rows, ()),)) for name in rows[0] if all(name in r for r in rows)}
