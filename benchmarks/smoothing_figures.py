"""SS Fig. 3 and 9 and the rows of Tables E.1 and E.4, from the cells: `python -m benchmarks.smoothing_figures OUT/`.

Writes figure3-DATA-SCALE.svg (NLL, accuracy, ECE, AUROC against ensemble size), figure9-DATA-SCALE.svg (mean NLL under
corruption) and smoothing.md (reported and measured, side by side) for every scale in `results/`. Lines are means
over seeds, bands their range, as in the paper.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from calibrant.bench.store import Cell, Store
from calibrant.bench.tables import interval, moments

ROOT = Path(__file__).resolve().parents[1]
NAMES = {"nll": "NLL", "accuracy": "accuracy", "ece": "ECE", "auroc": "AUROC"}
VARIANTS = {"_dropout": "MC dropout", "_dropout_smooth": "MC dropout + smoothing"}
SINGLE = {"": "deterministic", "_smooth": "deterministic + smoothing"}


def cells(results: Path, table: str) -> dict[tuple[str, str], list[Cell]]:
    """(row, scale) → its seeds; smoke runs are nobody's result."""
    out: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    if (results / "ss" / table).is_dir():
        for cell in Store(results).cells(f"ss/{table}"):
            if cell.status == "done" and cell.scale != "smoke":
                out[cell.experiment.rsplit("/", 1)[1], cell.scale].append(cell)
    return out


def band(axes: Any, x: list[int], seeds: list[list[float]], label: str, colour: str) -> None:
    mean = [sum(column) / len(column) for column in zip(*seeds, strict=True)]
    axes.plot(x, mean, label=label, color=colour)
    if len(seeds) > 1:
        low, high = ([f(column) for column in zip(*seeds, strict=True)] for f in (min, max))
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def figure3(found: dict[tuple[str, str], list[Cell]], data: str, scale: str) -> Any | None:
    """Against ensemble size; deterministic networks are levels."""
    from matplotlib.figure import Figure

    if not any((f"{data}_resnet18{v}", scale) in found for v in VARIANTS):
        return None
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for axes, (metric, title) in zip(figure.subplots(1, 4), NAMES.items(), strict=True):
        for colour, (suffix, label) in zip(("C0", "C1"), VARIANTS.items(), strict=True):
            curves = [c.extras["curve"][metric] for c in found.get((f"{data}_resnet18{suffix}", scale), [])]
            curves = [c for c in curves if None not in c]
            if curves:
                band(axes, list(range(1, len(curves[0]) + 1)), curves, label, colour)
        for colour, (suffix, label) in zip(("C0", "C1"), SINGLE.items(), strict=True):
            levels = [c.measured["as_trained"][metric] for c in found.get((f"{data}_resnet18{suffix}", scale), [])]
            if levels and None not in levels:
                axes.axhline(sum(levels) / len(levels), color=colour, linestyle=":", label=label)
        axes.set(xlabel="ensemble size", title=title, xscale="log")
    figure.axes[0].legend(fontsize=7)
    return figure


def figure9(found: dict[tuple[str, str], list[Cell]], data: str, scale: str) -> Any | None:
    """Mean NLL over SS's 15 corruptions and 5 severities, against ensemble size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 3), layout="constrained")
    axes = figure.subplots()
    for colour, (suffix, label) in zip(("C0", "C1"), VARIANTS.items(), strict=True):
        rows = [c.extras.get("corruption") for c in found.get((f"{data}_resnet18{suffix}", scale), [])]
        if not rows or None in rows:
            continue
        sizes = sorted(int(s) for s in rows[0] if s.isdigit())
        curves = [[row[str(s)]["fifteen"]["mean_nll"]["value"] for s in sizes] for row in rows]
        band(axes, sizes, curves, label, colour)
    if not axes.lines:
        return None
    axes.set(xlabel="ensemble size", ylabel="mean NLL under corruption", xscale="log")
    axes.legend(fontsize=7)
    return figure


def table(found: dict[tuple[str, str], list[Cell]]) -> list[str]:
    """Markdown: reported, and measured with its 95 % interval (seeds and items, where both are known)."""
    out = ["| row | scale | seeds | variant | metric | reported | measured |", "|---|---|---:|---|---|---:|---|"]
    for (row, scale), seeds in sorted(found.items()):
        for variant in seeds[0].measured:
            for metric in ("nll", "accuracy", "ece", "auroc", "consistency"):
                values = [c.measured.get(variant, {}).get(metric) for c in seeds]
                known = [v for v in values if v is not None]
                if len(known) != len(seeds):
                    continue
                bounds = [c.intervals.get(variant, {}).get(metric, (None, None)) for c in seeds]
                items = [(b[0] - v, b[1] - v) for b, v in zip(bounds, known, strict=True) if None not in b]
                low, high = interval(known, items)
                said = seeds[0].reported.get(variant, {}).get(metric)
                spread = "" if low is None or high is None else f" [{low:.4f}, {high:.4f}]"
                told = "–" if said is None else f"{said:.4g}"
                measured = f"{moments(known)[0]:.4f}{spread}"
                out.append(f"| {row} | {scale} | {len(seeds)} | {variant} | {metric} | {told} | {measured} |")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    e1 = cells(a.results, "table_e1")
    for scale in sorted({scale for _, scale in e1}):
        for data in ("cifar10", "cifar100"):
            for name, draw in (("figure3", figure3), ("figure9", figure9)):
                with_curves = {k: [c for c in v if "curve" in c.extras] for k, v in e1.items()}
                figure = draw({k: v for k, v in with_curves.items() if v}, data, scale)
                if figure is not None:
                    figure.savefig(a.out / f"{name}-{data}-{scale}.svg")
    lines = ["# SS Table E.1", "", *table(e1), "", "# SS Table E.4", "", *table(cells(a.results, "table_e4"))]
    (a.out / "smoothing.md").write_text("\n".join(lines) + "\n", "utf-8")
    print(a.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
