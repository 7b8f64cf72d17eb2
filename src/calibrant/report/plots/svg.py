"""A figure as a small SVG string that is the same every time and follows the page's colours.

Text stays text (the page's font, selectable, half the size of outlines). Colours of `style.COLOURS` become
`var(--name, colour)`. Matplotlib's numbered ids are removed, because several figures share one page. A `gid` of the
form `tip:…` becomes a tooltip.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING, Any

from calibrant.errors import escaped
from calibrant.report.plots.style import COLOURS, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIP = "tip:"


def to_svg(ax: Axes, label: str, salt: str = "calibrant") -> str:
    """Return the whole figure of `ax` as SVG; a screen reader reads `label`.

    `data-frame` holds the place of `ax` (left, top, right, bottom) and its limits (x, X, y, Y), so that the page's
    script can move a marker over it.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.text import Text

    figure = figure_of(ax)
    buffer = io.StringIO()
    options: Any = {"svg.hashsalt": salt, "svg.fonttype": "none", "path.simplify": True, "path.simplify_threshold": 0.3}
    options["text.parse_math"] = False  # for ticks, which are created while drawing; other texts keep their own setting
    for words in figure.findobj(Text):
        words.set_parse_math(False)
    with matplotlib.rc_context(options):
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(buffer, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = escaped(buffer.getvalue(), lines=True)
    return _themed(_small(text[text.index("<svg") :]), label, _frame(ax))


def _small(svg: str) -> str:
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r'<style type="text/css">.*?</style>', "", svg, flags=re.S)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(rf'<g id="{TIP}([^"]*)">', r"<g><title>\1</title>", svg)
    svg = re.sub(r' id="(?!p[0-9a-f]{10}|m[0-9a-f]{10}|C)[^"]*"', "", svg)
    svg = re.sub(r"<defs>\s*</defs>|<defs/>", "", svg)
    # no screen shows a hundredth of a point; numbers between tags are text and keep their digits
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(-?\d+\.\d{2})\d+", r"\1", tag[0]), svg)
    return re.sub(r">\s+<", "><", re.sub(r" *\n *", " ", svg)).strip()


def _frame(ax: Axes) -> str:
    """Return the place of the drawn axes, in points from the top left as in SVG, and their limits."""
    figure = figure_of(ax)
    height = figure.get_size_inches()[1]
    box = ax.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    place = [72 * v for v in (box.x0, height - box.y1, box.x1, height - box.y0)]
    return " ".join(f"{v:.5g}" for v in (*place, *ax.get_xlim(), *ax.get_ylim()))


def _themed(svg: str, label: str, frame: str) -> str:
    for name, colour in COLOURS.items():
        svg = svg.replace(f": {colour}", f": var(--{name},{colour})")
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg)  # the page's own
    svg = re.sub(r' transform="rotate\(-0[^"]*\)"', "", svg)
    head = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert head is not None
    width = round(float(head[1]) * 4 / 3)
    opening = f'<svg viewBox="0 0 {head[1]} {head[2]}" role="img" aria-label="{escape(label)}" '
    opening += f'data-frame="{frame}" style="max-width:{width}px">'
    return re.sub(r"^<svg[^>]*>", lambda _: opening, svg)
