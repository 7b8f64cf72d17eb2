"""SS's studies on CIFAR-100, a picture a network: `python -m benchmarks.smoothing_studies OUT/ [--results results]`.

ss-studies-NETWORK-SCALE.svg   a panel a table (B.1, B.2, Fig. A.1, B.1, B.2, F.1, C.1, C.2, C.3), a dot a row: NLL of
                               the 50 members (of the network itself where it has no dropout), with its interval over
                               the test items; a network that ended with uniform probabilities is said and not drawn

One seed a row, so the bars say how well this network's NLL is known, not how another training of it would come out.
Every title says the scale: `20of200` is not the paper's schedule.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks.ar_figures import command, saved
from benchmarks.smoothing_figures import CLASSES, uniform
from benchmarks.smoothing_units import STUDIES
from calibrant.bench.store import Cell, Store
from calibrant.papers import AS_TRAINED, experiments
from calibrant.report.plots.style import COLOURS, dress

TITLES = {
    "table_b1": "Table B.1: upper bounds", "table_b2": "Table B.2: kernels", "figure_b1": "Fig. B.1: τ",
    "figure_b2": "Fig. B.2: one layer, after stage", "figure_a1": "Fig. A.1: dropout rates",
    "figure_f1": "Fig. F.1: pre-activation", "table_c1": "Table C.1: heads", "table_c2": "Table C.2: pre-activation",
    "section_c3": "App. C.3: ReLU6 everywhere",
}  # fmt: skip
COLUMNS = 3
NETWORKS = ("resnet18", "vgg16")
Found = dict[str, list[Cell]]  # table → its rows of one network and scale, in the paper's order


def figure(found: Found) -> Any:
    from matplotlib.figure import Figure

    rows = -(-len(found) // COLUMNS)
    picture = Figure(figsize=(4.3 * COLUMNS, 2.6 * rows), layout="constrained")
    axes = [dress(ax) for ax in picture.subplots(rows, COLUMNS, squeeze=False).flat]
    for ax, (table, cells) in zip(axes, found.items(), strict=False):
        _panel(ax, TITLES[table], cells)
    for ax in axes[len(found) :]:
        ax.set_axis_off()
    return picture


def _panel(ax: Any, title: str, cells: list[Cell]) -> None:
    for at, cell in enumerate(cells):
        if uniform(cell, CLASSES["cifar100"]):  # a dot at ln 100 would press the others together
            ax.text(0.03, at, "did not learn", transform=ax.get_yaxis_transform(), va="center", color=COLOURS["muted"])
            continue
        which = "dropout" if "dropout" in cell.measured else AS_TRAINED
        value, (low, high) = cell.measured[which]["nll"], cell.intervals[which]["nll"]
        colour = COLOURS["accent" if which == "dropout" else "muted"]
        ax.errorbar(value, at, xerr=[[value - low], [high - value]], fmt="o", color=colour, ms=4, capsize=2, lw=1.2)
    ax.set_yticks(range(len(cells)), [_label(c) for c in cells])
    ax.set_ylim(len(cells) - 0.5, -0.5)  # the paper's first row on top
    ax.set_title(title, fontsize=10, color=COLOURS["ink"])
    ax.set_xlabel("NLL, nats")


def _label(cell: Cell) -> str:
    row = cell.experiment.rpartition("/")[2]
    for network in NETWORKS:
        row = row.removeprefix(network).removeprefix("_")
    return row.replace("_", " ") or "as it is"


def draw(results: Path, out: Path) -> list[Path]:
    by: dict[tuple[str, str], Found] = defaultdict(lambda: defaultdict(list))
    cells = list(Store(results).cells("ss"))
    for e in (e for table in STUDIES for e in experiments(f"ss/{table}")):
        for cell in (c for c in cells if c.experiment == e.name):
            measured = cell.status == "done" and "nll" in cell.measured.get(AS_TRAINED, {})
            if measured and cell.seed == 0 and cell.scale != "smoke":
                by["vgg16" if "vgg" in e.row else "resnet18", cell.scale][e.table].append(cell)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for (network, scale), found in sorted(by.items()):
        picture = figure(found)
        said = "" if scale == "paper" else f", {scale.replace('of', ' of ')} epochs, NOT the paper's schedule"
        name = {"resnet18": "ResNet-18", "vgg16": "VGG-16"}[network]
        picture.suptitle(f"CIFAR-100, {name}, MC dropout, single runs{said}", fontsize=12)
        written.append(saved(picture, out / f"ss-studies-{network}-{scale}.svg"))
    return written


if __name__ == "__main__":
    raise SystemExit(command(draw, __doc__))
