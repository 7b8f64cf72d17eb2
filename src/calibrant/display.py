"""How objects show themselves: a headline and a small table, as text in a shell and as HTML in a notebook.

A class that inherits from `Shown` defines `_shown`, and both forms are made from it. `aligned` lines up the columns of
any table, and `short_names` shortens names for its header.
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
"""The six metrics that are shown first, everywhere."""


class Shown:
    """Mixin that makes `repr(x)` and the notebook's output from `_shown`, in subclasses too."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in cls.__dict__:  # else a dataclass would generate one
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
    """The metrics that are in `HEADLINE`, in its order; all metrics if none is."""
    given = list(metrics)
    return [name for name in HEADLINE if name in given] or given


def aligned(rows: Rows, *, numbers: bool = False) -> list[str]:
    """The rows as lines with aligned columns; with `numbers`, all columns but the first are aligned right."""
    plain = [[escaped(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip_longest(*plain, fillvalue="")]
    lines = []
    for row in plain:
        cells = zip(row, widths, strict=False)
        lines.append("  ".join(t.rjust(w) if numbers and i else t.ljust(w) for i, (t, w) in enumerate(cells)).rstrip())
    return lines


def short_names(names: Sequence[str]) -> list[str]:
    """The shortest distinct endings of paths: ['run/a/p.npz', 'run/b/p.npz'] → ['a/p.npz', 'b/p.npz'].

    Equal names are numbered. The weights of module:factory@WEIGHTS are left out if the factories differ.
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
