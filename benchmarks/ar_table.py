"""The cells of `ar_runs` as one table of plain text: a line a method, means over seeds ± their standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

from calibrant.bench.store import Cell
from calibrant.papers import AS_TRAINED
from calibrant.papers.ar import CORRUPTIONS, OOD

COLUMNS = (  # heading, variant, metric, factor, digits
    ("acc %", AS_TRAINED, "accuracy", 100, 2),
    ("ECE %", AS_TRAINED, "ece", 100, 2),
    ("NLL", AS_TRAINED, "nll", 1, 3),
    ("AUROC %", AS_TRAINED, "auroc", 100, 2),
    ("T: ECE %", "temperature", "ece", 100, 2),
    ("T: NLL", "temperature", "nll", 1, 3),
    ("c-acc %", CORRUPTIONS, "accuracy", 100, 1),
    ("c-ECE %", CORRUPTIONS, "ece", 100, 2),
    ("c-NLL", CORRUPTIONS, "nll", 1, 3),
    ("T: c-ECE %", f"temperature_{CORRUPTIONS}", "ece", 100, 2),
    ("OOD %", OOD, "auroc_entropy", 100, 2),
)
VARIANCES = (*((f"×100, {i}", f"intensity_{i}", "variance", 100, 2) for i in range(1, 6)),)
FEW = 3


def table(cells: Sequence[Cell]) -> str:
    """Runs and pools, then variances over runs, then how calibration falls with robustness."""
    rows = [c for c in cells if "/table3/" in c.experiment or "/figure5/" in c.experiment]
    out = _lines(rows, COLUMNS, ("paper's c-ECE %", CORRUPTIONS, "ece", 100))
    spreads = [c for c in cells if "/table5/" in c.experiment]
    if spreads:
        columns = (("clean ×100", AS_TRAINED, "variance", 100, 2), *VARIANCES)
        out += ["", *_lines(spreads, columns, ("paper's mean", CORRUPTIONS, "variance", 100))]
    for cell in spreads:
        levels = (cell.extras.get("by_level") or {}).get("levels", [])
        if levels:
            ece = " ".join(f"{100 * row['ece']['value']:.1f}" for row in levels)
            variance = " ".join(f"{100 * row['variance']['value']:.2f}" for row in levels)
            out += [
                "",
                f"{cell.experiment} by level, least robust first: ECE % {ece}",
                f"    variance × 100 {variance}",
            ]
    notes = {c.note.partition(";")[0] for c in cells if c.note.startswith("NOT")}
    return "\n".join([*out, "", *sorted(notes), "T: after temperature scaling; c: mean over the corrupted sets"])


def _lines(
    cells: Sequence[Cell], columns: Sequence[tuple[str, str, str, int, int]], paper: tuple[str, str, str, int]
) -> list[str]:
    by: dict[str, list[Cell]] = {}
    for cell in cells:
        by.setdefault(cell.experiment.removeprefix("ar/"), []).append(cell)
    body = [["", "seeds", *(c[0] for c in columns), paper[0]]]
    for name, found in by.items():
        said = found[0].reported.get(paper[1], {}).get(paper[2])
        values = [_entry([c.measured.get(v, {}).get(m) for c in found], f, d) for _, v, m, f, d in columns]
        few = "" if len(found) >= FEW else " (single run)" if len(found) == 1 else " (few)"
        body.append([name + few, str(len(found)), *values, "" if said is None else f"{said * paper[3]:.1f}"])
    widths = [max(len(row[i]) for row in body) for i in range(len(body[0]))]
    return [
        "  ".join(t.ljust(w) if i == 0 else t.rjust(w) for i, (t, w) in enumerate(zip(r, widths, strict=True)))
        for r in body
    ]


def _entry(values: Sequence[float | None], factor: int, digits: int) -> str:
    known = [factor * v for v in values if v is not None]
    if not known:
        return "-"
    return f"{mean(known):.{digits}f}" + (f" ± {stdev(known):.{digits}f}" if len(known) > 1 else "")
