"""Print a paper's table beside our numbers: for the terminal, in Markdown and in LaTeX, with the paper's rows.

Each column of the paper's table is a part of its own. Blocks that were not run are named in one line. A caveat of a
number is a letter behind it, which is explained below the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calibrant.bench.reproduction import Entry
from calibrant.bench.seeds import PAPER, Group
from calibrant.bench.verdict import Verdict
from calibrant.papers.reported import Column, Number, Table
from calibrant.report import numbers
from calibrant.report.comparison import signed
from calibrant.report.numbers import metric_of
from calibrant.types import Estimate

SCALE = re.compile(r"(\d+)of(\d+)(?:b(\d+))?(?:w(\d+))?(?:-(.+))?")
HEAD = ("paper", "measured", "seeds", "difference", "verdict")
RULE = (
    "A verdict judges the difference from the first row of a block, paired by seed (below 5 seeds with a variance "
    "pooled over the block): the rule is in docs/claims.md."
)


@dataclass(frozen=True)
class Part:
    """One column of a paper's table. A row is either a block's title (a single cell), or a label and the cells of
    `HEAD`."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    not_run: tuple[str, ...]


@dataclass(frozen=True)
class Text:
    """A table as words, before any layout."""

    title: str
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


def text_of(table: Table, entries: Sequence[Entry]) -> Text:
    """The words of a table."""
    letters = _letters(entries)
    parts = []
    for column in table.columns:
        here = [e for e in entries if e.column == column]
        blocks = dict.fromkeys(e.block for e in here)
        idle = [b for b in blocks if all(e.measured is None for e in here if e.block == b)]
        rows: list[tuple[str, ...]] = []
        for block in (b for b in blocks if b not in idle):
            rows += [(block,), *(_row(e, letters) for e in here if e.block == block)]
        parts.append(Part(column.title, tuple(rows), tuple(idle)))
    notes = [f"({letter}) {caveat}" if letter else caveat for caveat, letter in letters.items()]
    if table.oracle:
        notes.append(f"oracle: {table.oracle}")
    return Text(f"{table.name}. {table.where}: {table.caption}", tuple(parts), (*notes, RULE))


def _letters(entries: Sequence[Entry]) -> dict[str, str]:
    """Caveat → its letter; a caveat of every measured number needs none."""
    measured = [e for e in entries if e.measured is not None]
    known = dict.fromkeys(c for e in measured for c in e.caveats)
    some = [c for c in known if not all(c in e.caveats for e in measured)]
    return {c: "" for c in known if c not in some} | {c: _letter(i) for i, c in enumerate(some)}


def _letter(i: int) -> str:
    return chr(ord("a") + i) if i < 26 else _letter(i // 26 - 1) + _letter(i % 26)


def _row(entry: Entry, letters: dict[str, str]) -> tuple[str, ...]:
    metric = entry.column.metric
    label = f"  {entry.row}{of_group(entry.group)}"
    if entry.measured is None:
        return label, reported(entry.column, entry.reported), numbers.DASH, "", "", "not run"
    marks = ",".join(letters[c] for c in entry.caveats if letters[c])
    shown = brief(metric, Estimate(entry.measured.value, entry.measured.low, entry.measured.high))
    return (
        label,
        reported(entry.column, entry.reported),
        f"{shown} ({marks})" if marks else shown,
        str(entry.measured.seeds),
        difference(metric, entry.verdict),
        entry.verdict.word if entry.verdict else "",
    )


def of_group(group: Group | None) -> str:
    """What is unlike the paper, as in ` (20 of 200 epochs, optimiser.weight_decay=0.0)`; empty if nothing is."""
    words = [] if group is None else [scale_words(group.scale) if group.scale != PAPER else "", group.settings]
    return f" ({', '.join(filter(None, words))})" if any(words) else ""


def scale_words(scale: str) -> str:
    """`30of200b512w1-resnet29v2` → `30 of 200 epochs, batch 512, warm-up 1, resnet29v2`; other names are unchanged."""
    found = SCALE.fullmatch(scale)
    if found is None:
        return scale
    parts = (f"{found[1]} of {found[2]} epochs", found[3] and f"batch {found[3]}", found[4] and f"warm-up {found[4]}")
    return ", ".join(p for p in (*parts, found[5]) if p)


def reported(column: Column, number: Number) -> str:
    """The number as the paper prints it, `3.03±0.16%▲`, or in our unit if that is another one."""
    unit = metric_of(column.metric)
    if column.percent == numbers.is_percent(unit):
        return number.typed.removesuffix(number.mark) + "%" * column.percent + number.mark
    shown = [numbers.value(unit, v) for v in (number.value, number.spread) if v is not None]
    return "±".join([*(s.removesuffix("%") for s in shown[:-1]), shown[-1]]) + number.mark


def brief(metric: str, estimate: Estimate) -> str:
    return numbers.brief(metric_of(metric), estimate)


def difference(metric: str, verdict: Verdict | None) -> str:
    """The difference and its interval, as in `−0.0342 [−0.0410, −0.0274]`; percentages in points (pp)."""
    if verdict is None or verdict.mean is None:
        return ""
    unit = metric_of(metric)
    shown = signed(unit, verdict.mean)
    if verdict.low is None or verdict.high is None:
        return shown
    ends = ", ".join(signed(unit, v).removesuffix(" pp") for v in (verdict.low, verdict.high))
    return f"{shown} [{ends}]"


def plain(text: Text) -> str:
    """The table for the terminal."""
    lines = [text.title]
    for part in text.parts:
        if part.rows:
            grid = [(part.title, *HEAD), *part.rows]
            wide = [max(len(r[i]) for r in grid if len(r) > 1) for i in range(len(HEAD) + 1)]
            lines.append("")
            lines += ["  ".join(f"{c:<{w}}" for c, w in zip(r, wide, strict=False)).rstrip() for r in grid]
        if part.not_run:
            lines += ["", f"{part.title}: not run: {'; '.join(part.not_run)}"]
    return "\n".join([*lines, "", *text.notes])


def markdown(text: Text) -> str:
    def cell(words: str) -> str:
        return words.strip().replace("|", r"\|")

    return _marked(text, f"### {text.title}", cell, _markdown_grid, "*not run*: {}", "- {}")


def latex(text: Text) -> str:
    return _marked(text, f"% {text.title}", tex, _latex_grid, "\\emph{{not run}}: {}\n", "% {}")


def _marked(
    text: Text,
    title: str,
    cell: Callable[[str], str],
    grid: Callable[[Sequence[str], list[list[str]]], list[str]],
    idle: str,
    note: str,
) -> str:
    lines = [title, ""]
    for part in text.parts:
        if part.rows:
            rows = [[cell(c) for c in r] + [""] * (len(HEAD) + 1 - len(r)) for r in part.rows]
            lines += [*grid([cell(c) for c in (part.title, *HEAD)], rows), ""]
        if part.not_run:
            lines += [idle.format(cell(f"{part.title}: {'; '.join(part.not_run)}")), ""]
    return "\n".join([*lines, *(note.format(n) for n in text.notes)])


def _markdown_grid(head: Sequence[str], rows: list[list[str]]) -> list[str]:
    titled = [[f"**{r[0]}**", *r[1:]] if not any(r[1:]) else r for r in rows]
    return [f"| {' | '.join(r)} |" for r in (head, ["---"] * len(head), *titled)]


def _latex_grid(head: Sequence[str], rows: list[list[str]]) -> list[str]:
    body = [rf"\textbf{{{r[0]}}} \\" if not any(r[1:]) else f"{' & '.join(r)} " + r"\\" for r in rows]
    opening = [rf"\begin{{tabular}}{{l{'r' * len(HEAD)}}}", r"\toprule", f"{' & '.join(head)} " + r"\\", r"\midrule"]
    return [*opening, *body, r"\bottomrule", r"\end{tabular}"]


TEX = {"\\": r"\textbackslash{}"} | {c: rf"\{c}" for c in "&%$#_{}"}
TEX |= {"±": r"$\pm$", "−": "$-$", "▲": r"$\blacktriangle$", "▼": r"$\blacktriangledown$", "–": "--", "…": r"\dots{}"}


def tex(words: str) -> str:
    """The words escaped for LaTeX, signs in math mode."""
    return "".join(TEX.get(c, c) for c in words.strip())


FORMATS: dict[str, Callable[[Text], str]] = {"text": plain, "markdown": markdown, "latex": latex}
"""Name → layout."""
