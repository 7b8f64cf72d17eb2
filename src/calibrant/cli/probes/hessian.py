"""The probe `hessian`: how sharp the training loss is, by its largest eigenvalues, their density and the trace.

SS A.3; Fig. 8, C.3, D.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from calibrant.cli.probes.objective import batch_size, objective
from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import SEEDS, compared, compared_estimates, mean_over, plain, with_interval
from calibrant.diagnostics import hessian_density, hessian_spectrum, hessian_trace
from calibrant.ensembles.ensemble import with_progress
from calibrant.ensembles.reference import Reference
from calibrant.functional.krylov import Quadrature
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, curves, histogram
from calibrant.training.distances import items_hash
from calibrant.types import Estimate, Split

TOGETHER = 4
"""How many mini-batches the density and the trace are computed over; each of their products takes all of them."""
DENSITY, TRACE = {"steps": 30, "probes": 2}, 30
TOLERANCE = 1e-4
"""The tolerance of Lanczos that keeps errors below 1e-3: after few products it knows the gaps of its bound roughly."""


def hessian(request: Request) -> Probed:
    count, k, method = (request.options[o] for o in ("batches", "eigenvalues", "method"))
    dropout = bool(request.options["dropout"])
    settings: dict[str, Any] = {"batches": count, "batch": batch_size(request), "k": k, "method": method}
    if method == "lanczos":
        settings["tolerance"] = TOLERANCE
    settings |= {"dropout": dropout, "items": items_hash(request.data[Split.TRAIN])}

    def measure(model: Reference) -> Measured:
        network = request.network(model)
        found = objective(request, model, count)
        common: dict[str, Any] = {"loss": found.loss, "weight_decay": found.weight_decay, "dropout": dropout}
        title = f"Hessian of {model.name}"
        seen = (found.batches[i] for i in with_progress(range(len(found.batches)), title, show=request.progress))
        spectrum = hessian_spectrum(network, seen, k=k, method=method, tol=settings.get("tolerance"), **common)
        few = found.batches[:TOGETHER]
        density = hessian_density(network, few, **DENSITY, **common)
        trace = hessian_trace(network, few, products=TRACE, **common)
        record = {
            "loss": found.description,
            "batches": len(found.batches),
            "batch": len(found.batches[0][1]),
            "density_batches": len(few),
            "k": k,
            "method": method,
            "largest": spectrum.largest.tolist(),
            "trace": Estimate(trace.value, *trace.interval(), method="Hutch++, Student's t over random vectors"),
            "products": int(spectrum.products.sum()),
        }
        arrays = {"eigenvalues": spectrum.eigenvalues, "residuals": spectrum.residuals, "products": spectrum.products}
        return record, {**arrays, "nodes": density.nodes, "weights": density.weights}

    return side_by_side(request, "hessian", settings, measure, panel)


HEAD = ("network", "mean largest eigenvalue", "largest of all", "trace", "Hessian products", "worst residual")


def panel(found: Sequence[Result]) -> Panel:
    rows = []
    for r in found:
        largest = r.arrays["eigenvalues"][:, 0]
        rows.append(
            (
                r.name,
                with_interval(mean_over(largest)),
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
        "The Hessian's large eigenvalues are the directions in which the loss is sharp. Smoothing, global average "
        "pooling and ensembles make them smaller (SS §2.2).",
        figures,
        [Table("Hessian of the training loss", HEAD, rows)],
        [
            f"{first['batches']} mini-batches of {first['batch']} training items ({first['method']}). "
            + " ".join(f"{r.name}: {r.record['loss']}." for r in found),
            "BatchNorm uses its running statistics, dropout one mask per mini-batch. Density and trace are of the "
            f"first {first['density_batches']} mini-batches together; the trace's interval is over random vectors.",
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
    trace = compared_estimates(found, [r.record["trace"] for r in found], "the trace, their sum,")
    caption = f"All eigenvalues: most lie near zero, and a few large ones make the loss sharp. {tops}. {trace}"
    return Figure(ax, caption.strip())
