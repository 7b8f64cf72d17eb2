"""Which answers survive an attack? Accuracy against budget and against frequency (SS Table E.2, Fig. E.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, curves
from calibrant.report.probes import SEEDS, Result, compared, with_interval

HEAD = ("network, attack", "budget", "accuracy", "under attack", "success rate")


def panel(found: Sequence[Result]) -> Panel:
    names = list(dict.fromkeys(row["attack"] for row in found[0].record["attacks"]))
    figures = [_figure(found, name) for name in names]
    rows = [
        (
            f"{r.name}, {row['attack']}" + ("" if row["frequency"] is None else f" at {row['frequency']:g}π"),
            f"{row['epsilon']:.4g}",
            *(with_interval(row[k], 100, "%") for k in ("accuracy", "accuracy_under_attack", "success_rate")),
        )
        for r in found
        for name in names
        for row in _tabled(_rows(r, name))
    ]
    first = found[0].record
    return Panel(
        "Which answers survive an attack?",
        "An attack moves each pixel by at most its budget, away from the true class. An item that is wrong already "
        "counts as wrong.",
        figures,
        [Table("Accuracy under attack", HEAD, rows)],
        [
            f"{first['items']} items of {first['split']}, attacked through {first['predictor']}. Budgets are of "
            "pixels in [0, 1]; of frequencies the table shows the worst. The success rate is 1 − accuracy under attack "
            "/ accuracy; intervals are Wilson's.",
            SEEDS,
        ],
    )


def _figure(found: Sequence[Result], name: str) -> Figure:
    by_frequency = any(row["frequency"] is not None for row in _rows(found[0], name))
    drawn = []
    for r in found:
        rows = _rows(r, name)
        x = [row["frequency" if by_frequency else "epsilon"] for row in rows]
        drawn.append(Curve.of(r.name, x, [row["accuracy_under_attack"] for row in rows]))
    last = _rows(found[0], name)[-1]
    survived = [r.arrays[last["array"]].double() for r in found]
    verdict = compared(found, survived, f"the share that survives {name} at {_at(last)}")
    xlabel = "frequency of the attack, in units of π" if by_frequency else "budget ε, in pixels of [0, 1]"
    what = "which frequencies the attack needs" if by_frequency else "the slower it falls, the more robust"
    ax = curves(drawn, xlabel, "accuracy under attack", percent=True)
    return Figure(ax, f"{name}: {what}. {verdict}".strip())


def _rows(r: Result, name: str) -> list[dict[str, Any]]:
    return [row for row in r.record["attacks"] if row["attack"] == name]


def _tabled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every budget; of frequencies, the one that the network stands worst."""
    if rows[0]["frequency"] is None:
        return rows
    return [min(rows, key=lambda row: float(row["accuracy_under_attack"]["value"]))]


def _at(row: dict[str, Any]) -> str:
    return f"ε = {row['epsilon']:.3g}" if row["frequency"] is None else f"{row['frequency']:g}π"
