"""`audit --rule RULE/`: what a rule does to the audited items, on the terminal and as a panel of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.audit_inputs import Audited
from calibrant.errors import InputError
from calibrant.report.numbers import DASH, percent
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots import set_sizes
from calibrant.types import Estimate

if TYPE_CHECKING:
    from calibrant.decisions.judge import Judgement

COUNTED = ("loss_accepted", "set_size", "cost", "argmax", "threshold", "saved")
"""Estimates that are no share."""
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
TABLES = {
    "by_size": "coverage by the size of the set",
    "by_class": "class by class, the worst first",
    "by_group": "group by group, the worst first",
}


def judged(folder: Path, found: Sequence[Audited], allow_reuse: bool) -> list[Judgement]:
    """The rule on each input."""
    from calibrant.decisions.judge import judge
    from calibrant.decisions.storage import load_rule

    rule = load_rule(folder)
    for each in found:
        if each.predictions is None:
            raise InputError(f"{each.report.file}: a rule is judged on items in memory, and this was streamed")
    return [judge(rule, a.predictions, allow_reuse=allow_reuse) for a in found if a.predictions is not None]


def show_rule(console: Any, judgement: Judgement) -> None:
    from calibrant.report import terminal

    console.say(f"rule  {judgement.sentence}")
    if judgement.reused:
        console.say("judged with --allow-reuse: it may have been chosen on these very items", style="bold red")
    rows = [dict(zip(("rule", "value", "95% interval"), row, strict=True)) for row in lines(judgement)]
    console.print(terminal.records_table(rows))
    for name in judgement.tables:
        head, body = table(judgement, name)
        console.print(terminal.records_table([dict(zip(head, row, strict=True)) for row in body]))
    console.print("")


def rule_panel(judgement: Judgement, file: str | None) -> Panel:
    """The same for the HTML report."""
    tables = [Table("the rule on these items", ("", "value", "95% interval"), lines(judgement))]
    tables += [Table(TABLES[name], *table(judgement, name)) for name in judgement.tables]
    figures = []
    if "by_size" in judgement.tables:
        figures = [Figure(set_sizes(judgement.tables["by_size"]), "How many classes a set holds, and which sets miss")]
    notes = ["Judged with --allow-reuse: it may have been chosen on these very items."] if judgement.reused else []
    return Panel(f"What does the rule do to {file or 'these items'}?", f"{judgement.sentence}.", figures, tables, notes)


def lines(judgement: Judgement) -> list[tuple[str, str, str]]:
    return [(CALLED[name], *_cells(name, e)) for name, e in judgement.estimates.items()]


def table(judgement: Judgement, name: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(head, rows): the share has a column for its interval, other estimates have theirs in brackets."""
    from calibrant.decisions.judge import SHOWN

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
    return tuple(head), body


def _cells(name: str, e: Estimate) -> tuple[str, str]:
    if e.value is None or e.low is None or e.high is None:
        return DASH, e.reason or DASH
    if name in COUNTED:
        return f"{e.value:.4g}", f"{e.low:.4g} … {e.high:.4g}"
    return percent(e.value), f"{percent(e.low)} … {percent(e.high)}"
