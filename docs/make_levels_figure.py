"""`python -m docs.make_levels_figure` draws docs/figures/levels.svg (AR Fig. 1) from the cells of `ar/networks`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from calibrant.bench.robustness import COUNT
from calibrant.bench.store import Cell, Store
from calibrant.report.plots.style import COLOURS, dress

DOCS = Path(__file__).parent
PAGE = DOCS / "figures" / "levels.svg"
CUTS = {"level": ("tenths by robustness", "accent", "-"), "confidence": ("tenths by confidence", "second", "--")}
AFTER = {"": "as trained", "+temperature": "after temperature scaling"}


def draw(cells: Sequence[Cell]) -> Figure:
    """ECE of each tenth: a thin line per network, a thick one for their mean."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    for ax, (after, title) in zip(figure.subplots(1, 2), AFTER.items(), strict=True):
        dress(ax)
        for cut, (label, colour, dashes) in CUTS.items():
            each = [[100 * (c.measured[f"{cut}_{r}{after}"]["ece"] or 0) for r in range(COUNT)] for c in cells]
            for line in each:
                ax.plot(range(1, COUNT + 1), line, color=COLOURS[colour], linewidth=0.6, alpha=0.5)
            middle = [fmean(at) for at in zip(*each, strict=True)]
            ax.plot(range(1, COUNT + 1), middle, dashes, color=COLOURS[colour], linewidth=2, label=label)
        ax.set(xlabel="tenth of the test images, the lowest first", ylabel="ECE, %", xticks=range(1, COUNT + 1))
        ax.set_title(title, fontsize=10, color=COLOURS["muted"])
        ax.legend(frameon=False, fontsize=8, labelcolor=COLOURS["muted"])
    return figure


def main() -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "calibrant"}):
        draw(list(Store(DOCS.parent / "results").cells("ar/networks"))).savefig(PAGE, metadata={"Date": None})


if __name__ == "__main__":
    main()
