"""The panel on adversarial robustness: are inputs that are easy to attack badly calibrated? (AR §3, Fig. 1, 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.diagnostics.levels import ByLevel
from calibrant.report import numbers
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.levels import epsilon_path, level_accuracy, level_error
from calibrant.types import Estimate

HEAD = ("level", "items", "median distance", "accuracy", "confidence", "ECE", "variance over runs")


def head(found: ByLevel) -> tuple[str, ...]:
    """Return the columns; a single run has no variance over runs."""
    return HEAD if found.runs > 1 else HEAD[:-1]


def level_rows(found: ByLevel) -> list[list[str]]:
    """Return one row of text per level (1 is the least robust), in the order of `head`."""
    return [
        [
            str(row.level + 1),
            numbers.count(row.n),
            numbers.DASH if row.distance is None else f"{row.distance:.3f}",
            *(numbers.brief(name, getattr(row, name)) for name in ("accuracy", "confidence", "ece")),
            *([] if row.variance is None else [_variance(row.variance)]),
        ]
        for row in found.rows
    ]


def lead(found: ByLevel) -> str:
    """Describe the first and the last level in one sentence."""
    first, last = found.rows[0], found.rows[-1]
    ends = [
        f"{where} it is {_share(row.confidence.value)} sure and {_share(row.accuracy.value)} right"
        for where, row in (("the inputs that are easiest to attack", first), ("the most robust ones", last))
    ]
    who = f"{found.name}: on " if found.name else "On "
    return f"{who}{ends[0]}; on {ends[1]}."


def levels_panel(
    found: Sequence[ByLevel],
    *,
    ruler: str,
    attacked: str,
    targets: Mapping[str, Any] | None = None,
    further: Sequence[str] = (),
) -> Panel:
    """Return the panel: AR Fig. 1 (Fig. 2 for several predictors), the tables, and the path of ε_r, if known."""
    figures = [
        Figure(level_accuracy(each), f"accuracy and confidence by level{f': {each.name}' if each.name else ''}")
        for each in found
    ]
    figures.append(Figure(level_error(found, "ece"), "ECE by level"))
    if any(each.rows[0].variance is not None for each in found):
        figures.append(Figure(level_error(found, "variance"), "variance over runs by level"))
    if targets is not None:
        caption = f"the smoothing ε of each level over the epochs (α = {targets['alpha']:g})"
        figures.append(Figure(epsilon_path(targets["epsilon"]), caption))
    tables = [Table(each.name or "by level of robustness", head(each), level_rows(each)) for each in found]
    notes = [
        "Robustness is the L2 distance, in pixels of [0, 1], to another prediction than the network's own, measured on "
        f"{attacked} by {ruler.upper()}; it needs no label. Levels are equally large, 1 the least robust.",
        *dict.fromkeys(note for each in found for note in each.notes()),
        *further,
    ]
    return Panel(
        "Are inputs that are easy to attack badly calibrated?",
        " ".join(lead(each) for each in found),
        figures,
        tables,
        notes,
    )


def _share(value: float | None) -> str:
    """Return a share as text, with at most three nines."""
    return "over 99.9%" if value is not None and 0.999 < value < 1 else numbers.percent(value)


def _variance(e: Estimate) -> str:
    """Return a variance as text with five digits, because variances of probabilities are small."""
    if e.value is None:
        return numbers.DASH
    return f"{e.value:.5f}" + ("" if e.low is None or e.high is None else f" [{e.low:.5f}, {e.high:.5f}]")
