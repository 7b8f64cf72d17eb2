"""SS Fig. 3 and 9 from the cells of Table E.1: `python -m benchmarks.smoothing_figures OUT/ [--results results]`.

ss-figure3-DATA-SCALE.svg   NLL, accuracy, ECE and AUROC against the size of the ensemble, with and without smoothing
ss-figure9-DATA-SCALE.svg   NLL, accuracy and ECE against the severity, means over the 19 corruptions; 0 is clean. MC
                            dropout with as many members as are measured there, ten

DATA is followed by the network where that is not ResNet-18.

A line is the mean over seeds, the band reaches from the lowest to the highest, and the legend says how many there are.
Networks that ended with uniform probabilities are named in the title and not drawn: their level would flatten the rest.
Every title says the scale: `20of200` is not the paper's schedule.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks.ar_figures import PER_CENT, command, panels, saved
from calibrant.bench.store import Cell, Store
from calibrant.papers import AS_TRAINED
from calibrant.report.plots.style import COLOURS

ROWS = {  # suffix of the row → legend, colour, line
    "": ("deterministic", "muted", "--"),
    "_smooth": ("deterministic, smoothed", "muted", "-"),
    "_dropout": ("MC dropout", "accent", "--"),
    "_dropout_smooth": ("MC dropout, smoothed", "accent", "-"),
}
METRICS = {"nll": ("NLL, nats", 1.0), "accuracy": ("accuracy, %", PER_CENT), "ece": ("ECE, %", PER_CENT),
           "auroc": ("AUROC, %", PER_CENT)}  # fmt: skip
NETWORKS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "resnext50": "ResNeXt-50", "vgg16": "VGG-16",
            "vgg19": "VGG-19"}  # fmt: skip
CLASSES = {"cifar10": 10, "cifar100": 100}
Found = dict[str, list[Cell]]


def uniform(cell: Cell, classes: int) -> bool:
    """Did it not learn: is its NLL that of the same probability for every class?"""
    return math.isclose(cell.measured[AS_TRAINED]["nll"], math.log(classes), rel_tol=1e-3)


def figure3(found: Found) -> Any | None:
    """Against the size of the ensemble; a single network is a level line."""
    if not any("dropout" in suffix for suffix in found):
        return None
    axes = panels(len(METRICS))
    for suffix, cells in found.items():
        curves = [c.extras["curve"] for c in cells]
        for ax, (metric, (_, unit)) in zip(axes, METRICS.items(), strict=True):
            rows = [[unit * v for v in curve[metric]] for curve in curves]
            if "dropout" not in suffix:
                sizes = max(len(c.extras["curve"][metric]) for held in found.values() for c in held)
                rows = [row * sizes for row in rows]
            _line(ax, range(1, len(rows[0]) + 1), rows, suffix, len(cells))
            ax.set_xscale("log")
            ax.set_xticks([1, 2, 5, 10, 20, 50], [str(n) for n in (1, 2, 5, 10, 20, 50)])
            ax.minorticks_off()
    return _finished(axes, list(METRICS), "members")


def figure9(found: Found) -> Any | None:
    """Against the severity; 0 is the clean test set, of which the corrupted images are the first ones."""
    shown = list(METRICS)[:3]
    axes, some = panels(len(shown)), False
    for suffix, cells in found.items():
        held = [c for c in cells if "corruption" in c.extras]
        for ax, metric in zip(axes, shown, strict=True):
            rows = [[METRICS[metric][1] * v for v in _by_severity(c, metric)] for c in held]
            if rows:
                _line(ax, range(len(rows[0])), rows, suffix, len(held))
                some = True
    return _finished(axes, shown, "severity") if some else None


def _by_severity(cell: Cell, metric: str) -> list[float]:
    found = cell.extras["corruption"]
    size = str(max(int(n) for n in found if n.isdigit()))
    clean = cell.extras["curve"][metric][min(int(size), len(cell.extras["curve"][metric])) - 1]
    by: dict[int, list[float]] = defaultdict(list)
    for name, row in found[size]["cells"].items():
        by[int(name.rpartition("-")[2])].append(row[metric])
    return [clean, *(mean(by[severity]) for severity in sorted(by))]


def _line(ax: Any, x: Sequence[int], rows: Sequence[Sequence[float]], suffix: str, seeds: int) -> None:
    label, colour, style = ROWS[suffix]
    columns = list(zip(*rows, strict=True))
    said = f"{label} ({_seeds(seeds)})"
    ax.plot(x, [mean(c) for c in columns], style, color=COLOURS[colour], label=said, linewidth=1.6)
    ax.fill_between(x, [min(c) for c in columns], [max(c) for c in columns], color=COLOURS[colour], alpha=0.15, lw=0)


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ': single run'}"


def _finished(axes: Sequence[Any], metrics: Sequence[str], label: str) -> Any:
    for ax, metric in zip(axes, metrics, strict=True):
        ax.set_title(METRICS[metric][0], fontsize=10, color=COLOURS["ink"])
        ax.set_xlabel(label)
    figure = axes[0].figure
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.set_size_inches(3.4 * len(axes), 3.6)
    return figure


FIGURES: dict[str, Callable[[Found], Any | None]] = {"figure3": figure3, "figure9": figure9}


def _epochs(scale: str) -> str:
    """20of200 → "20 of 200 epochs"; …w1: with a warm-up of one, not squeezed."""
    epochs, _, warm = scale.partition("w")
    return f"{epochs.replace('of', ' of ')} epochs" + (f", warm-up of {warm}" if warm else "")


def draw(results: Path, out: Path) -> list[Path]:
    by: dict[tuple[str, str, str], Found] = defaultdict(lambda: defaultdict(list))
    for cell in Store(results).cells("ss/table_e1"):
        data, network, *variant = cell.experiment.removeprefix("ss/table_e1/").split("_", 2)
        suffix = "".join(f"_{name}" for name in variant)
        measured = cell.status == "done" and AS_TRAINED in cell.measured and "curve" in cell.extras
        if measured and suffix in ROWS and cell.scale != "smoke":
            by[data, network, cell.scale][suffix].append(cell)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for (data, network, scale), found in sorted(by.items()):
        of = data if network == "resnet18" else f"{data}-{network}"
        idle = {suffix: [c for c in found[suffix] if uniform(c, CLASSES[data])] for suffix in ROWS if suffix in found}
        drawn = {suffix: [c for c in found[suffix] if c not in cells] for suffix, cells in idle.items()}
        left = ", ".join(f"{ROWS[suffix][0]} ({_seeds(len(cells))})" for suffix, cells in idle.items() if cells)
        for name, make in FIGURES.items():
            figure = make({suffix: cells for suffix, cells in drawn.items() if cells})
            if figure is not None:
                said = "" if scale == "paper" else f": {_epochs(scale)}, NOT the paper's schedule"
                said += f"\nnot drawn, did not learn: {left}" if left else ""
                figure.suptitle(f"{data.replace('cifar', 'CIFAR-')}, {NETWORKS[network]}{said}", fontsize=12)
                written.append(saved(figure, out / f"ss-{name}-{of}-{scale}.svg"))
    return written


if __name__ == "__main__":
    raise SystemExit(command(draw, __doc__))
