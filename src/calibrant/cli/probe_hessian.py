"""The probe `hessian`: largest eigenvalues of mini-batches, density and trace of the training loss (SS A.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.cli.probe_objective import batch_size, objective
from calibrant.cli.probe_results import Probed, side_by_side
from calibrant.diagnostics import hessian_density, hessian_spectrum, hessian_trace
from calibrant.ensembles.single import steps
from calibrant.report.probes.hessian import panel
from calibrant.training.distances import items_hash
from calibrant.types import Estimate, Split

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.cli.probe_request import Request
    from calibrant.ensembles.reference import Reference

TOGETHER = 4
"""Mini-batches of the density and the trace: their products go through all of these."""
DENSITY, TRACE = {"steps": 30, "probes": 2}, 30
TOLERANCE = 1e-4
"""Of Lanczos, so that errors stay below 1e-3: its bound trusts gaps that it knows only roughly after few products."""


def hessian(request: Request) -> Probed:
    count, k, method = (request.options[o] for o in ("batches", "eigenvalues", "method"))
    dropout = bool(request.options["dropout"])
    settings: dict[str, Any] = {"batches": count, "batch": batch_size(request), "k": k, "method": method}
    if method == "lanczos":
        settings["tolerance"] = TOLERANCE
    settings |= {"dropout": dropout, "items": items_hash(request.data[Split.TRAIN])}

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        network = request.network(model)
        found = objective(request, model, count)
        common: dict[str, Any] = {"loss": found.loss, "weight_decay": found.weight_decay, "dropout": dropout}
        title = f"Hessian of {model.name}"
        seen = (found.batches[i] for i in steps(range(len(found.batches)), title, show=request.progress))
        spectrum = hessian_spectrum(network, seen, k=k, method=method, tol=settings.get("tolerance"), **common)
        few = found.batches[:TOGETHER]
        density = hessian_density(network, few, **DENSITY, **common)
        trace = hessian_trace(network, few, products=TRACE, **common)
        record = {
            "loss": found.said,
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
