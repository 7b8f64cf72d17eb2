"""What an object shows of itself: a headline and a small table, as text in a shell and as HTML in a notebook.

A class that inherits from `Shown` writes `_shown`; both forms come from it. Columns that line up (`aligned`) and names
short enough to stand over one (`short_names`) are for every table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from itertools import zip_longest
from typing import Any

from calibrant.errors import escaped

Rows = Sequence[Sequence[str]]

HEADLINE = ("accuracy", "nll", "brier", "ece", "gap", "auroc")
"""The six numbers that are shown first, everywhere; the rest stands in the full table."""


class Shown:
    """Mixin: `repr(x)` and the notebook's cell are what `_shown` says, in subclasses too."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in cls.__dict__:  # a dataclass writes its own unless the class has one
            cls.__repr__ = Shown.__repr__  # type: ignore[method-assign]

    def _shown(self) -> tuple[str, Rows]:
        """The headline, and rows of text."""
        raise TypeError(f"{type(self).__name__} must define _shown")

    def __repr__(self) -> str:
        title, rows = self._shown()
        return "\n".join([escaped(title, lines=True), *(f"  {line}" for line in aligned(rows))])

    def _repr_html_(self) -> str:
        title, rows = self._shown()
        style = 'style="text-align: left; white-space: nowrap"'
        cells = ("".join(f"<td {style}>{escape(escaped(text))}</td>" for text in row) for row in rows)
        table = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<p><strong>{escape(escaped(title))}</strong></p>" + (f"<table>{table}</table>" if table else "")


def headline(metrics: Iterable[str]) -> list[str]:
    """Those of `HEADLINE` that are there; all, where none of them is."""
    there = list(metrics)
    return [name for name in HEADLINE if name in there] or there


def aligned(rows: Rows, *, numbers: bool = False) -> list[str]:
    """Rows as lines whose columns stand under each other; with `numbers`, all but the first are flush right."""
    plain = [[escaped(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip_longest(*plain, fillvalue="")]
    lines = []
    for row in plain:
        cells = zip(row, widths, strict=False)
        lines.append("  ".join(t.rjust(w) if numbers and i else t.ljust(w) for i, (t, w) in enumerate(cells)).rstrip())
    return lines


def short_names(names: Sequence[str]) -> list[str]:
    """['run/a/test.npz', 'run/b/test.npz'] → ['a/test.npz', 'b/test.npz']; equal ones are numbered.

    Of module:factory@WEIGHTS the weights are left out where the factories tell them apart.
    """
    names = [escaped(name) for name in names]
    heads = [head if ":" in head else name for name in names for head in [name.partition("@")[0]]]
    if len(set(heads)) == len(set(names)):  # module:factory@WEIGHTS
        names = heads
    parts = [[part for part in name.replace("\\", "/").split("/") if part] or [name] for name in names]
    distinct = len(set(names))
    short = list(names)
    for depth in range(1, max(map(len, parts), default=1) + 1):
        short = ["/".join(p[-depth:]) for p in parts]
        if len(set(short)) == distinct:
            break
    seen: Counter[str] = Counter()
    out = []
    for name in short:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out
