"""AR Fig. 1, 2, 4 and 5 from the cells: `python -m benchmarks.ar_figures OUT/ [--results results]`.

Writes figure1.svg (vanilla by level of robustness), figure2.svg (vanilla, LS, AR-AdaLS and AdaLS by level), figure4.svg
(entropy on CIFAR-100) and figure5.svg (ECE against the number of levels), each for the scale that is there; a figure
whose cells are missing is left out. Every title says the scale: `30of200b512` is not the paper's schedule.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from calibrant.bench.store import Cell, Store
from calibrant.papers import AS_TRAINED
from calibrant.papers.ar import CORRUPTIONS
from calibrant.report.plots.style import COLOURS, SERIES, dress

ROOT = Path(__file__).resolve().parents[1]
LABELS = {"vanilla": "vanilla", "smoothing": "LS", "ar_adals": "AR-AdaLS", "adals": "AdaLS"}
LEVEL = "level of robustness (1: least)"
PER_CENT = 100.0
Found = dict[str, list[Cell]]


def panels(count: int) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * count, 3.2), layout="constrained")
    return [dress(axes) for axes in figure.subplots(1, count, squeeze=False)[0]]


def levels(cell: Cell, name: str) -> list[float]:
    """In per cent; the variance too, as in the paper's tables (× 100)."""
    return [PER_CENT * row[name]["value"] for row in cell.extras["by_level"]["levels"]]


def figure1(found: Found) -> Any | None:
    """Accuracy and confidence, ECE, and variance over runs, of the vanilla network."""
    cells = [c for c in found.get("table5/vanilla", []) if c.extras.get("by_level")]
    if not cells:
        return None
    cell, axes = cells[0], panels(3)
    for name, colour in (("accuracy", "accent"), ("confidence", "bad")):
        axes[0].plot(_x(cell), levels(cell, name), "o-", color=COLOURS[colour], label=name)
    axes[0].legend(frameon=False)
    axes[1].bar(_x(cell), levels(cell, "ece"), color=COLOURS["accent"])
    axes[2].bar(_x(cell), levels(cell, "variance"), color=COLOURS["accent"])
    titles = ("accuracy and confidence, %", "ECE, %", f"variance over {cell.extras['runs']} runs, × 100")
    return _finished(axes, titles, LEVEL)


def figure2(found: Found) -> Any | None:
    """ECE and variance by level, method by method."""
    each = {m: c[0] for m in LABELS if (c := found.get(f"table5/{m}")) and c[0].extras.get("by_level")}
    if len(each) < 2:
        return None
    axes = panels(2)
    for (method, cell), colour in zip(each.items(), SERIES, strict=False):
        for ax, name in zip(axes, ("ece", "variance"), strict=True):
            ax.plot(_x(cell), levels(cell, name), "o-", color=COLOURS[colour], label=LABELS[method])
    axes[0].legend(frameon=False)
    return _finished(axes, ("ECE, %", "variance over runs, × 100"), LEVEL)


def figure4(found: Found) -> Any | None:
    """Shares of CIFAR-100's images by the entropy of the prediction, means over seeds."""
    cells = {m: found.get(f"ood/cifar10_{m}", []) for m in LABELS}
    rows = {m: [h for c in held if (h := c.extras.get("entropy_histogram"))] for m, held in cells.items()}
    if not any(rows.values()):
        return None
    (ax,) = panels(1)
    for (method, shares), colour in zip(rows.items(), SERIES, strict=False):
        if shares:
            ends = [math.log(10) * i / len(shares[0]) for i in range(len(shares[0]) + 1)]
            ax.stairs([mean(column) for column in zip(*shares, strict=True)], ends, color=COLOURS[colour],
                      label=LABELS[method], linewidth=1.6)  # fmt: skip
    ax.legend(frameon=False)
    return _finished([ax], ("CIFAR-100, share of images",), "entropy, nats")


def figure5(found: Found) -> Any | None:
    """ECE against R, clean and under corruption, mean and standard deviation over seeds."""
    by = {int(name.rsplit("_", 1)[1]): cells for name, cells in found.items() if name.startswith("figure5/levels_")}
    by |= {10: found["table3/ar_adals"]} if by and "table3/ar_adals" in found else {}
    if len(by) < 2:
        return None
    axes = panels(2)
    for ax, variant in zip(axes, (AS_TRAINED, CORRUPTIONS), strict=True):
        found_ece = {r: [c.measured.get(variant, {}).get("ece") for c in by[r]] for r in sorted(by)}
        points = {r: [PER_CENT * e for e in values if e is not None] for r, values in found_ece.items()}
        known = {r: values for r, values in points.items() if values}
        spread = [stdev(v) if len(v) > 1 else 0.0 for v in known.values()]
        ax.errorbar(
            list(known), [mean(v) for v in known.values()], spread, fmt="o-", color=COLOURS["accent"], capsize=3
        )
        ax.set_ylim(bottom=0)
        ax.set_xticks(list(known))
    seeds = ", ".join(str(len(by[r])) for r in sorted(by))
    return _finished(axes, ("ECE, %, clean", "ECE, %, mean over corruptions"), f"number of levels R (seeds: {seeds})")


def _x(cell: Cell) -> list[int]:
    return [row["level"] + 1 for row in cell.extras["by_level"]["levels"]]


def _finished(axes: Any, titles: tuple[str, ...], label: str) -> Any:
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, fontsize=10, color=COLOURS["ink"])
        ax.set_xlabel(label)
        if label == LEVEL:
            ax.set_xticks(range(1, 1 + round(ax.dataLim.x1)))
    return axes[0].figure


def saved(figure: Any, path: Path) -> Path:
    """The same bytes for the same cells: no date, no random names."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None})
    return path


FIGURES: dict[str, Callable[[Found], Any | None]] = {
    "figure1": figure1,
    "figure2": figure2,
    "figure4": figure4,
    "figure5": figure5,
}


def draw(results: Path, out: Path) -> list[Path]:
    by_scale: dict[str, Found] = defaultdict(lambda: defaultdict(list))
    for cell in Store(results).cells("ar"):
        if cell.status == "done" and cell.scale != "smoke":
            by_scale[cell.scale][cell.experiment.removeprefix("ar/")].append(cell)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for scale, found in sorted(by_scale.items()):
        for name, make in FIGURES.items():
            figure = make(found)
            if figure is not None:
                said = "" if scale == "paper" else ": NOT the paper's schedule"
                figure.suptitle(f"CIFAR-10, ResNet-29 v2{said}", fontsize=10 if len(figure.axes) == 1 else 12)
                written.append(saved(figure, out / f"ar-{name}-{scale}.svg"))
    return written


def command(draw: Callable[[Path, Path], list[Path]], about: str | None) -> int:
    """OUT/ [--results FOLDER]: what every script that draws cells takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    a = parser.parse_args()
    for path in draw(a.results, a.out):
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(command(draw, __doc__))
