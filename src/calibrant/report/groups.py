"""`audit --by COLUMN`: the sentence, the rows for a terminal, and the panel of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calibrant.metrics.subgroups import Subgroup, Subgroups
from calibrant.report import numbers, plots
from calibrant.report.comparison import signed
from calibrant.report.panels import Figure, Panel, Table
from calibrant.types import Estimate

EACH = "Each interval holds by itself; p is corrected for the number of groups (Holm)."


def sentence(found: Subgroups) -> str:
    """Name the worst group, or say that none stands out."""
    g = found.worst or found.largest
    p = f"{numbers.p_value(g.p_holm)} after correcting for {len(found.parts)} groups"
    others = f"the other items {signed('gap', g.rest)}"
    if found.worst is None:
        return (
            f"no {found.column} stands out: the largest gap is that of {g.name}, {signed('gap', g.gap)} ({others}; {p})"
        )
    return f"worst {found.column}: {g.name} {_says(g)} (gap {signed('gap', g.gap)}, {others}; {p})"


def _says(g: Subgroup) -> str:
    accuracy = g.report.metrics.get("accuracy")
    if accuracy is None or accuracy.value is None:
        return "is furthest off"
    said, right = numbers.percent_pair(accuracy.value + g.gap, accuracy.value)
    return f"says {said}, is right {right}"


def table(found: Subgroups, names: Sequence[str], shown: Callable[[str, Estimate], str]) -> Table:
    """Return a table with one row per group; `shown` makes the text of a metric."""
    rows = [
        {
            found.column: g.name,
            "items": numbers.count(g.report.n),
            **{name: shown(name, g.report[name]) for name in names},
            "p (Holm)": numbers.p_cell(g.p_holm),
        }
        for g in found.parts
    ]
    worst = None if found.worst is None else found.parts.index(found.worst)
    return Table.of(f"By {found.column}", rows, worst, "worst")


def narrow(name: str, e: Estimate) -> str:
    """Return the value and, on a second line, its interval with one digit less: four metrics fit 80 columns."""
    value, ends = numbers.value(name, e.value), numbers.bounds(name, e, fewer=1)
    return value if e.value is None or ends is None else f"{value}\n{ends[0]}…{ends[1]}"


def group_panel(found: Subgroups, file: str | None, names: Sequence[str]) -> Panel:
    """Return the panel with the forest plot and the table of the groups; `file` names one of several files."""
    cut = [g.name[:28] for g in found.parts]  # long names leave the figure no room
    called = cut if len(set(cut)) == len(cut) else [g.name for g in found.parts]
    reports = {name: g.report for name, g in zip(called, found.parts, strict=True)}
    axes = plots.forest(reports, names=names, colours=["accent"])
    return Panel(
        f"Is it worse for some {found.column}?" + (f" ({file})" if file else ""),
        numbers.sentence(sentence(found)),
        [Figure(axes[0], f"Each {found.column} with 95% intervals. {EACH}", wide=True)],
        [table(found, names, numbers.brief)],
        ["p tests the difference between the gap of a group and that of all other items."],
    )
