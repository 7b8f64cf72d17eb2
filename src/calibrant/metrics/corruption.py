"""Many corruptions of the same items in one number: plain means (SS §3.1) and those against a reference (SS Eq. 34–36).

    mean_error, mean_nll, mean_ece, mean_auroc      averages over types and severities, of the model alone
    mce, mcnll, mcece      (1/|C|) Σ_c [ Σ_s E_{s,c} / Σ_s E_{s,c} of the reference ],   E = error, NLL, ECE

The paper calls both mCNLL; here the plain mean is `mean_nll` and the normalised one `mcnll`.

An interval resamples items *jointly*: the cells show the same images, so their errors move together. Error, NLL and
their ratios: BCa. ECE: test inversion over all cells at once (`corruption_terms`). AUROC: each item's influence, summed
over cells. Their coverage is measured (docs/coverage_shift.md). mCECE: the test inversion of the model's ECEs, with the
reference's taken as given, as a published table's are: a ratio of two noisy ECEs has no interval that covers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.scores import Scores
from calibrant.metrics import METRICS
from calibrant.metrics.bca import acceleration, bca, influence, normal_quantile
from calibrant.metrics.bootstrap import weights
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.corruption_terms import (
    Binned,
    Gaps,
    Linear,
    Smooth,
    Term,
    binned,
    mean,
    mean_ece,
    over_given,
    ratio,
)
from calibrant.metrics.table import Panel
from calibrant.types import SCHEMA, Estimate, jsonable

Key = tuple[str, int]
"""(type, severity)."""

CELL_METRICS = ("accuracy", "nll", "ece", "auroc")
NORMALISED = {"error": "mce", "nll": "mcnll", "ece": "mcece"}
BY_TYPE = {"error": "ce", "nll": "cnll", "ece": "cece"}
NO_ERROR = "the reference makes no error on some type: nothing to divide by"
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
    """Aggregates of one predictor's Scores by (type, severity), all of the same items in the same order."""
    checked(cells, reference)
    types, severities = list(dict.fromkeys(c for c, _ in cells)), sorted({s for _, s in cells})
    terms = {key: cell_terms(scores, resampling is not None) for key, scores in cells.items()}
    wanted: dict[tuple[str, Any], dict[str, Term]] = {("all", None): _means(terms.values(), "mean_")}
    wanted |= {("severity", s): _means(t for (_, at), t in terms.items() if at == s) for s in severities}
    wanted |= {("type", c): _means(t for (at, _), t in terms.items() if at == c) for c in types}
    absent: dict[str, Estimate] = {}
    if reference is not None:
        base = {key: cell_terms(reference[key], resampling is not None) for key in cells}
        normalised: dict[str, Term] = {}
        for name, title in NORMALISED.items():
            if any(name not in held[key] for held in (terms, base) for key in cells):
                absent[title] = Estimate(None, reason=NO_NLL)
                continue
            each = {
                c: ratio([terms[k][name] for k in cells if k[0] == c], [base[k][name] for k in cells if k[0] == c])
                for c in types
            }
            normalised[title] = mean(list(each.values()))
            for c in types:
                wanted["type", c][BY_TYPE[name]] = each[c]
        wanted["normalised", None] = normalised
    flat = {(where, name): term for where, row in wanted.items() for name, term in row.items()}
    first = next(iter(cells.values()))
    found = estimates(flat, first.n, first.group, resampling)
    rows: dict[tuple[str, Any], dict[str, Estimate]] = {where: {} for where in wanted}
    for (where, name), estimate in found.items():
        rows[where][name] = estimate
    return CorruptionReport(
        cells={key: cell_values(scores) for key, scores in cells.items()},
        means=rows["all", None],
        by_severity={s: rows["severity", s] for s in severities},
        by_type={c: rows["type", c] for c in types},
        normalised=rows.get(("normalised", None), {}) | absent,
        n=next(iter(cells.values())).n,
        conventions={
            "types": types,
            "severities": severities,
            "means": "plain averages over types and severities (SS §3.1)",
            "normalised": None if reference is None else "mean over types of Σ_s / Σ_s of the reference (SS Eq. 34–36)",
            "interval": None if resampling is None else resampling.describe("items, jointly over all cells"),
        },
    )


def checked(cells: Mapping[Key, Scores], reference: Mapping[Key, Scores] | None) -> None:
    """Every cell is about the same items; the reference has every cell."""
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


def cell_values(scores: Scores) -> dict[str, float | None]:
    """accuracy, NLL, ECE and AUROC of one cell; None where one does not exist."""
    panel = Panel(scores)
    out: dict[str, float | None] = {}
    for name in CELL_METRICS:
        value = float(METRICS[name](panel)) if METRICS[name].missing(scores) is None else math.nan
        out[name] = value if math.isfinite(value) else None
    return out


def cell_terms(scores: Scores, intervals: bool) -> dict[str, Term]:
    """What each aggregate is a combination of: error and NLL by item, ECE and AUROC with their influences."""
    panel = Panel(scores)
    terms: dict[str, Term] = {"error": Linear((scores.predicted != scores.labels).double())}
    if METRICS["nll"].missing(scores) is None:
        assert scores.log_p_label is not None
        terms["nll"] = Linear(-scores.log_p_label.double())
    terms["ece"] = Binned((Gaps.of(panel),))
    if METRICS["auroc"].missing(scores) is None:
        terms["auroc"] = Smooth.of(METRICS["auroc"], panel, influence if intervals else None)
    return terms


def _means(terms: Iterable[Mapping[str, Term]], prefix: str = "") -> dict[str, Term]:
    """The mean of each metric over these cells; one that some cell does not have has none."""
    rows = list(terms)
    return {f"{prefix}{name}": mean([r[name] for r in rows]) for name in rows[0] if all(name in r for r in rows)}


def estimates(
    terms: Mapping[Any, Term], n: int, group: Tensor | None, resampling: Resampling | None
) -> dict[Any, Estimate]:
    """Values, and the intervals of all of them from the same resamples."""
    if resampling is None or n < 2:
        return {
            name: Estimate(term.value) if math.isfinite(term.value) else Estimate(None, reason=NO_ERROR)
            for name, term in terms.items()
        }
    drawn = {name: term for name, term in terms.items() if term.linear}
    gaps = list({id(p): p for term in terms.values() for p in binned(term)}.values())
    parts: dict[Any, list[Tensor]] = {name: [] for name in drawn}
    moved: dict[int, list[Tensor]] = {id(p): [] for p in gaps}
    for w in weights(group, n, resampling.replicates, resampling.seed):
        w = w / w.sum(1, keepdim=True)
        for name, term in drawn.items():
            parts[name].append(term.replicates(w))
        for p in gaps:
            moved[id(p)].append(p.noise(w))
    noise = {key: torch.cat(rows) for key, rows in moved.items()}
    out = {}
    for name, term in terms.items():
        if isinstance(term, Binned):
            low, high = mean_ece(term.parts, [noise[id(p)] for p in term.parts], resampling.level)
            out[name] = Estimate(term.value, low, high, method="test inversion, jointly over cells")
        elif binned(term):
            out[name] = _over_given(term, noise, resampling.level)
        elif term.linear:
            out[name] = _bootstrapped(term, torch.cat(parts[name]), group, resampling.level)
        else:
            out[name] = _by_influence(term, group, resampling.level)
    return out


def _over_given(term: Term, noise: Mapping[int, Tensor], level: float) -> Estimate:
    held = over_given(term)
    if held is None or not math.isfinite(term.value):
        return Estimate(None, reason="the reference has no calibration error on some type: nothing to divide by")
    parts, factors = held
    low, high = mean_ece(parts, [noise[id(p)] for p in parts], level, factors)
    return Estimate(term.value, low, high, method="test inversion, jointly over cells; the reference's ECEs as given")


def _bootstrapped(term: Term, replicates: Tensor, group: Tensor | None, level: float) -> Estimate:
    replicates = replicates[torch.isfinite(replicates)]  # a draw in which the reference makes no error
    if not math.isfinite(term.value) or not len(replicates):
        return Estimate(None, reason=NO_ERROR)
    if float(replicates.max() - replicates.min()) <= 1e-15 * max(1.0, abs(term.value)):
        return Estimate(term.value, reason="every resample gives the same value: no interval")
    low, high = bca(term.value, replicates, acceleration(term.influence(), group), level)
    if isinstance(term, Linear):  # a mean lies between its items: 1.0000000000000002 is rounding
        low, high = max(low, float(term.items.min())), min(high, float(term.items.max()))
    return Estimate(term.value, low, high, method="BCa bootstrap over items, jointly over cells")


def _by_influence(term: Term, group: Tensor | None, level: float) -> Estimate:
    """A mean AUROC, on the scale of its logit: near 1 the plain scale would leave [0, 1]."""
    u, value = term.influence(), term.value
    if group is not None:
        u = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add_(0, group, u)
    spread = float(u.square().sum().sqrt())
    if spread == 0 or not 0 < value < 1:
        return Estimate(value, reason="every resample gives the same value: no interval")
    half = normal_quantile((1 + level) / 2) * spread / (value * (1 - value))
    middle = math.log(value / (1 - value))
    low, high = (1 / (1 + math.exp(-(middle + sign * half))) for sign in (-1, 1))
    return Estimate(value, low, high, method="influence of each item, summed over cells, on the logit's scale")
