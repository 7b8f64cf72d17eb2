"""Rich tables for the command line: pure functions from records to renderables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from calibrant.display import HEADLINE, short_names
from calibrant.errors import escaped
from calibrant.metrics import METRICS
from calibrant.report import numbers
from calibrant.report.comparison import rows
from calibrant.report.explain import ARROW
from calibrant.report.panels import Table as TextTable
from calibrant.report.verdict import judge
from calibrant.types import Report

if TYPE_CHECKING:
    from calibrant.metrics.compare import Comparison

COLOUR = {"over": "red", "under": "yellow", "uneven": "yellow", "calibrated": "green", "unknown": "white"}
VERDICT_COLOUR = {"better": "green", "worse": "red"}
MARK = {"chosen": "bold green", "worst": "bold red"}


def verdict_line(report: Report) -> Text:
    """Return the headline in the colour of its kind, then how certain it is and how well confidence ranks."""
    v = judge(report)
    text = Text()
    if report.file:
        text.append(f"{escaped(report.file)}\n", style="dim")
    text.append(v.sentence, style=f"bold {COLOUR[v.kind]}")
    for more in (v.reason, v.ranking):
        if more:
            text.append(f"\n{more}")
    return text


def audit_table(report: Report, names: Sequence[str]) -> Table:
    """Return a table of the named metrics with their intervals, or the reason why a value does not exist."""
    table = _table(("metric", "left"), ("", "left"), ("value", "right"), ("95% interval", "left"), ("", "left"))
    for name in names:
        e, metric = report[name], METRICS[name]
        table.add_row(
            Text(name, style="cyan"),
            ARROW[metric.better],
            numbers.value(name, e.value),
            Text(numbers.interval(name, e) if e.value is not None else ""),
            Text(e.reason or metric.title, style="dim"),
        )
    return table


def audit(report: Report, names: Sequence[str]) -> Group:
    """Return what `calibrant audit` prints for one file: the headline and the table."""
    return Group(verdict_line(report), "", audit_table(report, names))


def side_by_side(reports: Sequence[Report], names: Sequence[str]) -> Table:
    """Return a table with one column per file."""
    called = short_names([r.file or f"#{i + 1}" for i, r in enumerate(reports)])
    table = _table(("metric", "left"), ("", "left"), *[(name, "right") for name in called])
    for name in names:
        cells = []
        for report in reports:
            e = report.metrics.get(name)
            spread = "" if e is None or e.low is None else f"\n{numbers.interval(name, e)}"
            cells.append(Text(numbers.value(name, None if e is None else e.value)).append(spread, style="dim"))
        table.add_row(Text(name, style="cyan"), ARROW[METRICS[name].better], *cells)
    return table


def compare_table(comparison: Comparison, names: Sequence[str] | None = None) -> Table:
    """Return a table of the paired comparison: per metric the difference, its interval, p and the verdict.

    p is corrected for all metrics of the comparison, including those that `names` leaves out.
    """
    table = _table(
        ("metric", "left"),
        ("", "left"),
        ("difference", "right"),
        ("95% interval", "left"),
        ("p (Holm)", "right"),
        ("verdict", "left"),
    )
    a, b = short_names([comparison.a, comparison.b])
    title = f"{b} against {a}, {comparison.n:,} items"
    table.title, table.title_justify = Text(title, style="bold"), "left"
    for row in rows(comparison):
        if names is not None and row.metric not in names:
            continue
        table.add_row(
            Text(row.metric, style="cyan"),
            ARROW[METRICS[row.metric].better],
            row.difference,
            Text(row.interval),
            row.p,
            Text(row.verdict, style=VERDICT_COLOUR.get(row.verdict.split(" ")[0], "")),
        )
    return table


def joint_table(rows: Sequence[tuple[str, Report]]) -> Table:
    """Return a table with a row per predictor and a column per metric, the best of each column in bold."""
    table = Table(box=None, padding=(0, 1, 0, 0))  # the longest name fits 80 columns
    table.add_column("predictor", overflow="fold")
    for name in HEADLINE:
        table.add_column(f"{name} {ARROW[METRICS[name].better]}", justify="right", style="default")
    best = {name: min(_cost(name, r) for _, r in rows) for name in HEADLINE}
    for called, report in rows:
        cells = [
            f"[bold]{numbers.value(n, report[n].value)}[/bold]"
            if _cost(n, report) == best[n]
            else numbers.value(n, report[n].value)
            for n in HEADLINE
        ]
        table.add_row(called, *cells)
    return table


def _cost(name: str, report: Report) -> float:
    value = report[name].value
    if value is None:
        return float("inf")
    return {"high": -value, "low": value, "zero": abs(value)}[METRICS[name].better]


def text_table(found: TextTable) -> Table:
    """Return a table of the report for a terminal, without its caption."""
    table = _table(*[(name, "left" if i == 0 else "right") for i, name in enumerate(found.head)])
    for i, row in enumerate(found.rows):
        cells = [Text(escaped(cell, lines=True), overflow="fold") for cell in row]
        table.add_row(*cells, style=MARK[found.mark] if i == found.chosen else "")
    return table


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in columns:
        # a metric's name and its numbers stay whole; a file's name may break over lines
        right = justify == "right"
        table.add_column(
            Text(name, overflow="fold"),
            justify="right" if right else "left",
            no_wrap=name == "metric",
            overflow="fold",  # two names that begin alike must not both end in dots
        )
    return table
