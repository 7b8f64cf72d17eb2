"""The HTML report: one self-contained file that opens offline, for someone who has never heard of ECE.

Python computes everything that is shown; the page's script only picks stored numbers (operating points), sorts and
switches colours. All text from users is escaped, data are embedded as JSON that no parser can leave, and a
Content-Security-Policy admits the one script and no network at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.display import HEADLINE, headline, short_names
from calibrant.errors import InputError, escaped
from calibrant.files import outputs
from calibrant.files.atomic import write_text
from calibrant.functional.binning import BinSums
from calibrant.functional.scores import Scores, positive_class, reduce
from calibrant.metrics import METRICS
from calibrant.report import comparison as paired
from calibrant.report import numbers, page
from calibrant.report.explain import ARROW, BETTER, FAMILY, MEANING
from calibrant.report.groups import group_panel
from calibrant.report.panels import Panel, Table, drawn
from calibrant.report.sections import overview_figures, section
from calibrant.report.verdict import judge, verdict
from calibrant.types import Predictions, Report

if TYPE_CHECKING:
    from calibrant.metrics.compare import Comparison
    from calibrant.posthoc.advise import Advice


@dataclass(frozen=True)
class Audit:
    """What the report needs of one file. Without `scores` (a stream), the report says what it cannot show."""

    name: str
    report: Report
    scores: Scores | None = None
    predictions: Predictions | None = None  # for ids and class names
    sums: BinSums | None = None  # equal-width bin sums, enough for a reliability diagram
    notes: tuple[str, ...] = ()  # what looks wrong in the file; shown first

    @classmethod
    def of(cls, predictions: Predictions, report: Report, name: str = "", notes: Sequence[str] = ()) -> Audit:
        """Return the audit of predictions, reduced again with the bins and the event of the report."""
        called = name or report.file or predictions.source or "predictions"
        return cls(called, report, _scores(predictions, report), predictions, notes=tuple(notes))


def render(
    audits: Sequence[Audit],
    *,
    command: str,
    comparisons: Sequence[Comparison] = (),
    before: Audit | None = None,
    after: Audit | None = None,
    advice: Advice | None = None,
    title: str | None = None,
    panels: Sequence[Panel] = (),
) -> str:
    """Return the whole page.

    `after` is `before` (by default the first audit) after recalibration, on the same items. `panels` are further
    sections.
    """
    from markupsafe import escape

    if not audits:
        raise InputError("a report needs at least one set of predictions")
    files = [a.name for a in audits if a.name == a.report.file]  # paths are shortened, given names are kept
    called = dict(zip(files, short_names(files), strict=True))
    named = [replace(a, name=called.get(a.name, a.name)) for a in audits]
    change = None if after is None else _same_items(before or audits[0], after)
    sections = [section(i, a, change if i == 0 else None, advice if i == 0 else None) for i, a in enumerate(named)]
    return page.render(
        "report.html",
        command,
        {s.key: s.points for s in sections if s.points is not None},
        title=title or _title(named),
        sections=sections,
        several=len(sections) > 1,
        figures=overview_figures(sections) if len(sections) > 1 else {},
        comparisons=[replace(c, a=called.get(c.a, c.a), b=called.get(c.b, c.b)) for c in comparisons],
        compared=paired.rows,
        advice=advice,
        tried=None if advice is None else _tried(advice),
        room=None if advice is None else _room(advice),
        change=None if change is None else [a.report for a in change],
        after=None if after is None else verdict(after.report),
        panels=drawn(panels),
        conventions=_conventions(audits[0].report.conventions),
        markdown=escape(_markdown(named)),  # names in it are escaped; its lines are ours
        METRICS=METRICS,
        MEANING=MEANING,
        BETTER=BETTER,
        FAMILY=FAMILY,
        HEADLINE=HEADLINE,
        numbers=numbers,
    )


def write(path: str | os.PathLike[str], audits: Sequence[Audit], *, command: str, **options: Any) -> Path:
    """Write the page, completely or not at all; `options` are those of `render`."""
    return write_text(path, render(audits, command=command, **options))


def of_report(path: str | os.PathLike[str], report: Report) -> Path:
    """Write the page of a report of `calibrant.evaluate` (`report.to_html(path)`)."""
    if report.predictions is None:
        raise InputError(
            "this report does not hold its predictions (they were streamed), so there is nothing to draw; "
            "`calibrant audit FILE --html` makes the page of a stream"
        )
    outputs.check((Path(path), outputs.PAGE))
    panels = [] if report.by is None else [group_panel(report.by, None, headline(report.by.parts[0].report))]
    audits = [Audit.of(report.predictions, report)]
    return write(path, audits, panels=panels, command=f"report.to_html({str(path)!r})")


def _same_items(before: Audit, after: Audit) -> tuple[Audit, Audit]:
    same = before.report.n == after.report.n
    if same and before.scores is not None and after.scores is not None:
        same = bool((before.scores.labels == after.scores.labels).all())
    if not same:
        raise InputError(f"{before.name} and {after.name} are not the same items; before and after must be")
    return before, after


def _scores(predictions: Predictions, report: Report) -> Scores:
    scores = reduce(predictions, int(report.conventions.get("bins", 15)))
    return positive_class(scores) if report.conventions.get("about") == "positive class" else scores


def _title(audits: Sequence[Audit]) -> str:
    return f"Can you trust {'these predictions' if len(audits) > 1 else audits[0].name}?"


def _tried(advice: Advice) -> Table:
    chosen = next((i for i, each in enumerate(advice.tried) if each.method == advice.chosen), None)
    return Table.of("", advice.rows, chosen)


def _room(advice: Advice) -> Table | None:
    if advice.room is None:
        return None
    rows = [row.to_dict() for row in advice.room.rows]
    return Table.of("", [{name.replace("_", " "): each for name, each in row.items()} for row in rows])


def _conventions(conventions: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the conventions as flat pairs of text, without those that are None."""
    out: list[tuple[str, str]] = []
    for key, value in conventions.items():
        if isinstance(value, Mapping):
            out += [(f"{key}: {inner}", text) for inner, text in _conventions(value)]
        elif value is not None:
            out.append((str(key).replace("_", " "), str(value)))
    return out


def _markdown(audits: Sequence[Audit]) -> str:
    """Return what the page's button copies: a verdict per file, then a table with a column per file."""
    verdicts = [(a.name, judge(a.report)) for a in audits]
    lines = [f"**{_plain(name)}**: {v.sentence}. {v.reason}".rstrip() for name, v in verdicts]
    head = ["metric", *(_plain(a.name) for a in audits)]
    rows = [
        [f"{METRICS[name].title} {ARROW[METRICS[name].better]}", *(_cell(a, name) for a in audits)]
        for name in HEADLINE
        if any(name in a.report for a in audits)
    ]
    rule = ["---", *("---:" for _ in audits)]
    table = [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]
    n = ", ".join(numbers.items(a.report.n) for a in audits)
    return "\n".join(["\n\n".join(lines), "", *table, "", f"{n}; in brackets, 95% intervals.", ""])


def _cell(audit: Audit, name: str) -> str:
    return numbers.brief(name, audit.report[name]) if name in audit.report else numbers.DASH


def _plain(name: str) -> str:
    """Escape a name so that it cannot end a cell or start markup."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in escaped(name))
