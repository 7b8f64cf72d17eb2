"""Panels: what only some reports have, on the same page, with text that stays text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from calibrant.errors import InputError
from calibrant.report.html import Audit, render
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.style import new_axes

EVIL = "<script>alert(1)</script>"


def test_a_panel_stands_below_the_verdict_with_figure_table_and_note(audit: Callable[..., Audit]) -> None:
    ax = new_axes()
    ax.plot([0, 1], [0, 1])
    table = Table("by level", ["level", "ECE"], [["1", "3.0%"], ["2", "1.0%"]], chosen=1)
    panel = Panel("Which inputs?", "The fragile ones.", [Figure(ax, "ECE by level")], [table], ["measured on test"])
    text = render([audit()], command="calibrant", panels=[panel])
    assert text.index("Which inputs?") < text.index("The main numbers")
    several = render([audit("a.npz"), audit("b.npz")], command="calibrant", panels=[panel])
    assert several.index("Side by side") < several.index("Which inputs?") < several.index('<div class="file')
    assert 'aria-label="ECE by level"' in text and "3.0%" in text and "measured on test" in text
    assert text.count('<tr class="chosen">') == 1


def test_what_users_wrote_is_escaped_everywhere_in_a_panel(audit: Callable[..., Audit]) -> None:
    ax = new_axes()
    ax.set_title(EVIL)
    table = Table(EVIL, [EVIL], [[EVIL]])
    panel = Panel(EVIL, EVIL, [Figure(ax, EVIL)], [table], [EVIL])
    assert EVIL not in render([audit()], command="calibrant", panels=[panel])


def test_two_panels_share_the_page_without_sharing_ids(audit: Callable[..., Audit]) -> None:
    def panel() -> Panel:
        ax = new_axes()
        ax.fill_between([0, 1], [0, 1], [1, 2])
        ax.plot([0, 1], [1, 2], marker="o")
        return Panel("same", "same", [Figure(ax, "same")])

    import re

    ids = re.findall(r' id="([^"]+)"', render([audit()], command="calibrant", panels=[panel(), panel()]))
    assert len(ids) == len(set(ids))


def test_an_interval_stays_whole_and_a_wide_table_stands_it_below_its_value(audit: Callable[..., Audit]) -> None:
    row = ["1", "4.7% [3.7, 6.7]", *["0"] * 5]
    text = render([audit()], command="x", panels=[Panel("Wide?", "x", tables=[Table("t", list("abcdefg"), [row])])])
    assert '4.7% <span class="nw">[3.7, 6.7]</span>' in text and '<table class="plain dense">' in text
    small = render([audit()], command="x", panels=[Panel("Small?", "x", tables=[Table("t", ["a", "b"], [row[:2]])])])
    assert '<table class="plain dense">' not in small.partition("Small?")[2].partition("</section>")[0]


def test_a_ragged_table_is_refused() -> None:
    with pytest.raises(InputError, match="row 0 has 1 cells for 2 columns"):
        Table("t", ["a", "b"], [["1"]])
