"""`audit --rule RULE/`: what a rule does to the audited items, as tables and as a panel of the report."""

from __future__ import annotations

from calibrant.decisions.judge import SHOWN, Judgement
from calibrant.report.numbers import DASH, percent, sentence
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots import set_sizes
from calibrant.types import Estimate

COUNTED = ("loss_accepted", "set_size", "cost", "argmax", "threshold", "saved")
"""Estimates that are not shares."""
CALLED = {
    "accepted": "items accepted",
    "loss_accepted": "mean loss of the accepted",
    "accuracy_accepted": "accuracy of the accepted",
    "accuracy_rejected": "accuracy of the others",
    "coverage": "sets that hold the truth",
    "set_size": "classes in a set",
    "empty_sets": "empty sets",
    "cost": "cost of an item",
    "argmax": "… by acting on the likeliest class",
    "threshold": "… with the best threshold in hindsight",
    "saved": "saved against the likeliest class",
}
REUSED = "Judged with --allow-reuse: the rule may have been chosen on these very items."
TABLES = {
    "by_size": "Coverage by the size of the set",
    "by_class": "Class by class, the worst first",
    "by_group": "Group by group, the worst first",
}


def panel(judgement: Judgement, file: str | None) -> Panel:
    """Return the panel for the HTML report."""
    figures = []
    if "by_size" in judgement.tables:
        figures = [Figure(set_sizes(judgement.tables["by_size"]), "How many classes a set holds, and which sets miss")]
    notes = [REUSED] if judgement.reused else []
    title = f"What does the rule do to {file or 'these items'}?"
    return Panel(title, sentence(judgement.sentence), figures, tables(judgement), notes)


def tables(judgement: Judgement) -> list[Table]:
    """Return tables of what the rule does to all items, then by size of set, class or group."""
    rows = [(CALLED[name], *_cells(name, e)) for name, e in judgement.estimates.items()]
    first = Table("The rule on these items", ("rule", "value", "95% interval"), rows)
    return [first, *(_table(judgement, name) for name in judgement.tables)]


def _table(judgement: Judgement, name: str) -> Table:
    """Return one table; the share has a column for its interval, other estimates show theirs in brackets."""
    rows = judgement.tables[name]
    share = "coverage" if "coverage" in rows[0] else "accuracy_accepted"
    if name != "by_size":
        rows = sorted(rows, key=lambda row: 2.0 if row[share].value is None else row[share].value)[:SHOWN]
    head = [
        column for key in rows[0] for column in (CALLED.get(key, key), *(("95% interval ",) if key == share else ()))
    ]
    body = []
    for row in rows:
        cells: list[str] = []
        for key, value in row.items():
            if isinstance(value, Estimate):
                shown, interval = _cells(key, value)
                cells += [shown, interval] if key == share else [f"{shown} ({interval})"]
            else:
                cells.append(f"{value:,}" if isinstance(value, int) else str(value))
        body.append(tuple(cells))
    return Table(TABLES[name], head, body)


def _cells(name: str, e: Estimate) -> tuple[str, str]:
    if e.value is None or e.low is None or e.high is None:
        return DASH, e.reason or DASH
    if name in COUNTED:
        return f"{e.value:.4g}", f"{e.low:.4g} … {e.high:.4g}"
    return percent(e.value), f"{percent(e.low)} … {percent(e.high)}"
