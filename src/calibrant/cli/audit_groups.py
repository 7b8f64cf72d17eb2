"""`audit --by COLUMN` and `--plan WIDTH`: the same numbers in each group of items, and how many items are needed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.cli.audit_inputs import Audited, Options
from calibrant.display import HEADLINE
from calibrant.errors import CalibrantWarning, InputError
from calibrant.metrics.subgroups import Subgroups, subgroups
from calibrant.types import Report


def grouped(each: Audited, path: Path, column: str, o: Options) -> Subgroups:
    """The audited items by a column of their own file."""
    if each.predictions is None:
        raise InputError(
            f"{path}: --by needs the items in memory, and this was streamed; audit fewer rows, or leave out --stream"
        )
    with warnings.catch_warnings():  # the first reading said them
        warnings.simplefilter("ignore", CalibrantWarning)
        found = each.reading.read(path, group_key=column)
    assert found.group is not None and found.group_names is not None
    return subgroups(
        each.predictions,
        found.group,
        found.group_names,
        column,
        metrics=list(dict.fromkeys([*(o.names or HEADLINE), "gap"])),
        bins=o.bins,
        seed=o.seed,
        intervals=o.intervals,
        about=o.event,
        allow_reuse=o.allow_reuse,
    )


def show_groups(console: Any, each: Audited, shown: Sequence[str]) -> None:
    """What was asked for: the groups, the number of items that are needed."""
    if each.by is not None:
        _show_by(console, each.by, shown)
    if each.plan is not None:
        _show_plan(console, each.report, each.plan, shown)


def _show_by(console: Any, found: Subgroups, shown: Sequence[str]) -> None:
    """Four metrics fit 80 columns beside a name; JSON and the report have the others."""
    from calibrant.report import groups, terminal

    worst = None if found.worst is None else found.worst.name
    names = [n for n in shown if n in found.parts[0].report and n not in ("nll", "brier")] or list(shown)
    console.print(terminal.records_table(groups.rows(found, names[:4], groups.narrow), chosen=worst, style="bold red"))
    console.say(groups.EACH, "dim")
    console.say(groups.sentence(found), "bold")
    console.print()


def _show_plan(console: Any, report: Report, found: dict[str, Any], shown: Sequence[str]) -> None:
    from calibrant.report import terminal

    width = found["width"]
    rows = []
    for name in shown:
        e, n = report[name], found["items"][name]
        now = None if e.low is None or e.high is None else f"{e.high - e.low:.4f}"
        rows.append({"metric": name, "width now": now, f"items for {width:g}": None if n is None else f"{n:,}"})
    console.print(terminal.records_table(rows))
    console.say(f"items for a 95% interval of that width, if new ones are like these {report.n:,}", "dim")
    console.print()
