"""How does the loss look around the weights? (SS Fig. 7 and C.2)."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.diagnostics.landscape import Landscape
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.landscape import contour, levels_of, surface
from calibrant.report.probes import SEEDS, Result, compared, over, plain, with_interval

HEAD = ("network", "loss at the weights", "rise within half a filter norm", "fluctuation between masks")
SHOWN = 3
"""Masks whose contours are drawn."""


def panel(found: Sequence[Result]) -> Panel:
    held = [_landscape(r) for r in found]
    levels = levels_of([each.loss.numpy() for each in held])
    rises = [each.rise() for each in held]
    figures, rows = [], []
    for i, (r, each) in enumerate(zip(found, held, strict=True)):
        a, b = each.a.numpy(), each.b.numpy()
        for mask, loss in enumerate(each.loss[:SHOWN].numpy()):
            word = f", mask {mask + 1} of {len(each.loss)}" if len(each.loss) > 1 else ""
            said = compared([found[0], r], [rises[0], rises[i]], "the rise of the loss") if i and not mask else ""
            caption = f"{r.name}{word}: lines of equal loss; wide and round ones are flat ground. {said}"
            figures.append(Figure(contour(a, b, loss, levels, each.marks), caption.strip()))
        caption = f"{r.name}: the same as a surface, cut off at a loss of {plain(float(levels[-1]))}."
        figures.append(Figure(surface(a, b, each.loss.mean(0).numpy(), levels), caption))
        middle = float(each.each[:, len(b) // 2, len(a) // 2].mean())
        noise = "–" if len(each.loss) < 2 else plain(float(each.loss.std(0).mean()))
        rows.append((r.name, plain(middle), with_interval(over(rises[i])), noise))
    first = found[0].record
    return Panel(
        "How does the loss look around the weights?",
        "Smoothing and ensembles flatten the loss; dropout makes it fluctuate from mask to mask (SS Fig. 7, C.2).",
        figures,
        [Table("The loss on a plane", HEAD, rows)],
        [
            f"{first['points']} × {first['points']} points, {first['batches']} mini-batches of training items; "
            f"{first['plane']}. All contours have the same levels.",
            "The rise is the mean over points within 0.5 of the weights, with an interval over mini-batches; another "
            "random plane would give another number.",
            SEEDS,
        ],
    )


def _landscape(r: Result) -> Landscape:
    marks = tuple((float(x), float(y)) for x, y in r.record["marks"])
    return Landscape(r.arrays["a"], r.arrays["b"], r.arrays["each"], marks)
