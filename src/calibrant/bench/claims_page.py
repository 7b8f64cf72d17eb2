"""One self-contained HTML page for all five papers, with a card per claim, in the style of the audit's report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant.bench import claims, verdict
from calibrant.bench.claims import Summary
from calibrant.bench.reproduction import gpu_minutes
from calibrant.bench.store import Cell
from calibrant.bench.table_text import difference, of_group
from calibrant.report import page
from calibrant.report.numbers import metric_of
from calibrant.report.plots.forest import Difference, differences
from calibrant.report.plots.svg import to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOUR = {
    "reproduced": "good",
    "direction only": "second",
    "not reproduced": "bad",
    "inconclusive": "muted",
    "mixed": "second",
    "other scale": "accent",
    "single run": "muted",
    "not run": "muted",
}
"""Verdict → the report's name of its colour."""


def render(cells: Sequence[Cell], *, command: str) -> str:
    """The whole page."""
    found = claims.summaries(cells)
    used = {c.key: c for s in found for c in s.cells}.values()
    return page.render(
        "claims.html",
        command,
        {},
        title="Do the five papers hold?",
        papers=claims.by_paper(found),
        words=Counter(s.word for s in found),
        claims=len(found),
        cells=len(used),
        minutes=gpu_minutes(used),
        figures={s.claim.name: figure(s) for s in found},
        rows=claims.rows,
        head=claims.HEAD,
        colour=COLOUR,
        rule=[p.splitlines() for p in (verdict.__doc__ or "").replace("*", "").strip().split("\n\n")],
    )


def figure(summary: Summary) -> str:
    """A plot of the comparisons that were run, as SVG; empty if there are none."""
    from markupsafe import Markup

    axes = forest(summary)
    return Markup(to_svg(axes, f"{summary.claim.says} {summary.count}")) if axes else ""


def forest(summary: Summary) -> Axes | None:
    rows = [
        Difference(
            f"{j.pair.label}{of_group(j.group)}",
            metric_of(j.pair.metric) or j.pair.metric,
            j.pair.reported,
            j.verdict.mean,
            j.verdict.low,
            j.verdict.high,
            COLOUR[j.verdict.word],
            f"{difference(j.pair.metric, j.verdict)}, {j.verdict.word}",
        )
        for j in summary.found
        if j.verdict.mean is not None
    ]
    return differences(rows) if rows else None
