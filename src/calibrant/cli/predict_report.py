"""The report of `calibrant predict … --html`: the ensemble beside the network alone, and PEP's σ curve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import calibrant.provenance as provenance
from calibrant.ensembles.ensemble import Ensemble
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.sigma import sigma_curve
from calibrant.metrics.compare import compare
from calibrant.metrics.evaluate import evaluate
from calibrant.report import html
from calibrant.report.panels import Panel
from calibrant.report.sigma_panel import sigma_panel
from calibrant.types import Predictions

SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
"""Extra points of the curve, as multiples of σ*."""


def page(
    predicted: Predictions,
    alone: Predictions | None,
    made: Ensemble | None,
    held_out: Callable[[], Iterable[Any]],
    out: Path,
    maps: Mapping[str, Any],
) -> str:
    """The HTML of the report.

    `alone` are the network's predictions on the same items. `held_out` yields the items that σ was fitted on; `maps`
    says how their label maps are read.
    """
    name = f"{out.stem} ({type(made).__name__} of {made.size})" if made is not None else out.stem
    sets = [] if alone is None else [replace(alone, source="the network alone")]
    sets.append(replace(predicted, source=name))
    audits = [html.Audit.of(p, evaluate(p), p.source) for p in sets]
    comparisons = [compare(sets[0], sets[1])] if alone is not None else []
    panels = [_sigma(made, held_out, maps)] if isinstance(made, PEP) else []
    return html.render(audits, command=provenance.command(), comparisons=comparisons, panels=panels)


def _sigma(pep: PEP, held_out: Callable[[], Iterable[Any]], maps: Mapping[str, Any]) -> Panel:
    """The NLL at every σ that the search tried and at a few more, on the items that σ was fitted on."""
    fitted = pep.certificate
    members = pep.size if fitted is None else fitted.members
    curve = sigma_curve(pep.at(0.0, members), held_out(), **maps)
    curve.seen |= {point.sigma: point for point in fitted.curve} if fitted is not None else {}
    return sigma_panel(pep, curve.points([0.0, *(share * pep.sigma for share in SHARES)]))
