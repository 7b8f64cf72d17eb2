"""The verdict and the main numbers as Markdown, for an issue, a chat or a README: what the page's button copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant.errors import escaped
from calibrant.metrics import METRICS
from calibrant.report import numbers
from calibrant.report.explain import ARROW, HEADLINE
from calibrant.report.verdict import judge

if TYPE_CHECKING:
    from calibrant.report.html import Audit


def markdown(audits: Sequence[Audit]) -> str:
    """A verdict per set of predictions, then one table with a column for each."""
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
    """A name that ends no cell and starts no markup."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in escaped(name))
