"""PEP Fig. 3 from the cells of Table 2: overfitting against the PEP effect and σ*, as a table and as figures.

    python -m benchmarks.overfitting [--store results] [-o FOLDER]

`benchmarks/pep_table2.py` keeps, for the first seeds of a row, every epoch's NLL on train and test, its σ* and the NLL
of PEP on test (`extras.overfitting` of a cell). With `-o`, two SVG figures are written there: along training, and
overfitting against the effect.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from calibrant.bench.store import Store
from calibrant.files import atomic
from calibrant.report.plots.overfitting import Epoch, overfitting_curves, overfitting_scatter, rank_correlation
from calibrant.report.plots.svg import to_svg

Runs = Mapping[str, Sequence[Sequence[Epoch]]]


def read(store: Path) -> Runs:
    """Row of Table 2 → its trainings, each a list of epochs."""
    found: dict[str, list[list[Epoch]]] = {}
    for cell in Store(store).cells("pep/table2"):
        if kept := cell.extras.get("overfitting"):
            found.setdefault(cell.experiment.rpartition("/")[2], []).append([Epoch(**e) for e in kept])
    return found


def table(runs: Runs) -> list[str]:
    """Markdown: rank correlations over all epochs and seeds, and the effect at the least and the most overfitted."""
    lines = ["| row | trainings | ρ(overfitting, effect) | ρ(overfitting, σ*) | effect, first → last epoch |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name, trainings in sorted(runs.items()):
        flat = [e for run in trainings for e in run]
        gap = [e.overfitting for e in flat]
        first, last = (sum(run[at].effect for run in trainings) / len(trainings) for at in (0, -1))
        effect, sigma = (rank_correlation(gap, [getattr(e, of) for e in flat]) for of in ("effect", "sigma"))
        lines.append(f"| {name} | {len(trainings)} | {effect:.2f} | {sigma:.2f} | {first:.4f} → {last:.4f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("-o", "--out", type=Path, default=None)
    parser.add_argument("--row", default="cifar10_cnn", help="of the figure along training")
    args = parser.parse_args()
    runs = read(args.store)
    if not runs:
        raise SystemExit(f"{args.store} holds no cell of pep/table2 with epochs; run benchmarks/pep_table2.py")
    print("\n".join(table(runs)))
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        named = f"NLL along training, {args.row}"
        svgs = {"along_training": to_svg(overfitting_curves(runs[args.row]), named)}
        flat = {name: [e for run in trainings for e in run] for name, trainings in sorted(runs.items())}
        svgs["effect"] = to_svg(overfitting_scatter(flat), "overfitting against the PEP effect")
        for name, svg in svgs.items():
            text = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
            print(atomic.write_text(args.out / f"overfitting_{name}.svg", text))


if __name__ == "__main__":
    main()
