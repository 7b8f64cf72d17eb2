"""How sharp is the loss? Largest Hessian eigenvalues of mini-batches and the density of all (SS Fig. 8, C.3, D.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from calibrant.functional.krylov import Quadrature
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, curves, histogram
from calibrant.report.probes import SEEDS, Result, compared, over, plain, with_interval

HEAD = ("network", "mean largest eigenvalue", "largest of all", "trace", "Hessian products", "worst residual")


def panel(found: Sequence[Result]) -> Panel:
    rows = []
    for r in found:
        largest = r.arrays["eigenvalues"][:, 0]
        rows.append(
            (
                r.name,
                with_interval(over(largest)),
                plain(float(largest.max())),
                with_interval(r.record["trace"]),
                str(int(r.arrays["products"].sum())),
                plain(float(r.arrays["residuals"].max()), 2),
            )
        )
    first = found[0].record
    verdict = compared(found, [r.arrays["eigenvalues"][:, 0] for r in found], "the largest eigenvalue")
    spectrum = histogram(
        [(r.name, r.arrays["eigenvalues"].reshape(-1).tolist()) for r in found],
        "eigenvalue of the Hessian",
        "mini-batches" if first["k"] == 1 else "eigenvalues",
    )
    caption = f"The {first['k']} largest of each mini-batch: the further right, the sharper the loss. {verdict}".strip()
    figures = [Figure(spectrum, caption.replace("The 1 largest", "The largest eigenvalue")), _density(found)]
    return Panel(
        "How sharp is the loss around these weights?",
        "Large eigenvalues of the Hessian disturb training; smoothing, global average pooling and ensembles make them "
        "smaller (SS §2.2).",
        figures,
        [Table("Hessian of the training loss", HEAD, rows)],
        [
            f"{first['batches']} mini-batches of {first['batch']} training items ({first['method']}). "
            + " ".join(f"{r.name}: {r.record['loss']}." for r in found),
            "BatchNorm uses its statistics, dropout one mask per mini-batch. Density and trace are those of the first "
            f"{first['density_batches']} mini-batches together; the trace has a 95% interval over random vectors.",
            SEEDS,
        ],
    )


def _density(found: Sequence[Result]) -> Figure:
    nodes = [r.arrays["nodes"] for r in found]
    low, high = min(float(n.min()) for n in nodes), max(float(n.max()) for n in nodes)
    width = max((high - low) / 80, 1e-12)
    at = torch.linspace(low - 4 * width, high + 4 * width, 400, dtype=torch.float64)
    drawn = []
    for r in found:
        density = Quadrature(r.arrays["nodes"], r.arrays["weights"], 0).density(at, width)
        seen = density.clamp_min(float(density.max()) * 1e-7)
        drawn.append(Curve(r.name, at.tolist(), seen.tolist()))
    ax = curves(drawn, "eigenvalue of the Hessian", "density", log=True, marks=False)
    tops = ", ".join(f"{r.name} reaches {float(r.arrays['nodes'].max()):.3g}" for r in found)
    return Figure(ax, f"All eigenvalues: most lie near zero, and the few outliers make the loss sharp. {tops}.")
