"""Panels: what only some reports have, on the same page, with text that stays text."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from calibrant.errors import InputError
from calibrant.report.html import Audit, render
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.style import new_axes

EVIL = "<script>alert(1)</script>"


def test_a_panel_stands_below_the_verdict_with_figure_table_and_note(audit: Callable[..., Audit]) -> None:
    """Text stays text, ids are not shared, an interval stays whole, and a wide table is set small."""
    table = Table("by level", ["level", "ECE"], [["1", "4.7% [3.7, 6.7]"], ["2", "1.0%"]], chosen=1)
    wide = Table("wide", list("abcdefg"), [["0"] * 7])
    panels = [
        Panel("Which inputs?", "The fragile ones.", [drawn("ECE by level")], [table], ["measured on test"]),
        Panel(EVIL, EVIL, [drawn(EVIL)], [Table(EVIL, [EVIL], [[EVIL]])], [EVIL]),
        Panel("Wide?", "x", tables=[wide]),
    ]
    text = render([audit()], command="calibrant", panels=panels)
    assert text.index("Which inputs?") < text.index("The main numbers")
    assert 'aria-label="ECE by level"' in text and "measured on test" in text and EVIL not in text
    assert text.count('<tr class="chosen">') == 1
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    first, second = text.partition("Which inputs?")[2], text.partition("Wide?")[2]
    assert '4.7% <span class="nw">[3.7, 6.7]</span>' in first
    dense = ['<table class="plain dense">' in part.partition("</section>")[0] for part in (first, second)]
    assert dense == [False, True]
    several = render([audit("a.npz"), audit("b.npz")], command="calibrant", panels=panels[2:])
    assert several.index("Side by side") < several.index("Wide?") < several.index('<div class="file')


def drawn(title: str) -> Figure:
    ax = new_axes()
    ax.fill_between([0, 1], [0, 1], [1, 2])
    ax.plot([0, 1], [1, 2], marker="o")
    ax.set_title(title)
    return Figure(ax, title)


def test_a_ragged_table_is_refused() -> None:
    with pytest.raises(InputError, match="row 0 has 1 cells for 2 columns"):
        Table("t", ["a", "b"], [["1"]])
