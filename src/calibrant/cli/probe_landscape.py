"""The probe `landscape`: the loss on a plane around the weights, or through checkpoints (SS Fig. 7, C.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.cli.probe_objective import batch_size, objective
from calibrant.cli.probe_results import Probed, side_by_side
from calibrant.diagnostics.landscape import loss_landscape, plane_through
from calibrant.ensembles.dropout import dropouts
from calibrant.ensembles.reference import resolve
from calibrant.ensembles.single import steps
from calibrant.errors import InputError
from calibrant.report.probes.landscape import panel
from calibrant.training.distances import items_hash, network_hash
from calibrant.training.recipe import digest
from calibrant.types import Split

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.cli.probe_request import Request
    from calibrant.ensembles.reference import Reference

BATCHES = 4
"""At most: every point of the grid takes a pass over all of them."""
MARGIN = 0.3
"""Room around the checkpoints that a plane goes through."""


def landscape(request: Request) -> Probed:
    points, masks, through = (request.options[k] for k in ("grid", "masks", "through"))
    count = min(request.options["batches"], BATCHES)
    if through and (len(through) != 2 or len(request.models) > 1):
        raise InputError("--through takes two checkpoints (runs of the same network) and one model: A --through B,C")
    others = [resolve(name).members[:1] for name in through or ()]
    settings: dict[str, Any] = {"grid": points, "masks": masks, "batches": count, "batch": batch_size(request)}
    settings |= {"through": [network_hash(each) for each in others] or None}
    settings |= {"items": items_hash(request.data[Split.TRAIN])}

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        network = request.network(model)
        held = objective(request, model, count)
        options: dict[str, Any] = {"points": points, "loss": held.loss, "masks": masks if dropouts(network) else 0}
        said = "random, filter-normalised directions"
        if others:
            plane = plane_through(network, *(each.state_dict() for (each,) in others))
            x, y = zip(*plane.marks, strict=True)
            options |= {
                "plane": plane,
                "a": (min(x) - MARGIN, max(x) + MARGIN),
                "b": (min(y) - MARGIN, max(y) + MARGIN),
            }
            said = f"the plane through {model.name}, {' and '.join(through)}"
        rows = request.place("landscape") / f"{digest([settings, network_hash(model.members)])[:16]}.rows"
        title = f"landscape of {model.name}"
        found = loss_landscape(
            network,
            held.batches,
            store=rows,
            progress=lambda r: steps(list(r), title, show=request.progress),
            **options,
        )
        rows.unlink()
        record = {
            "points": points,
            "batches": len(held.batches),
            "plane": said,
            "marks": found.marks,
            "loss": held.said,
        }
        return record, {"a": found.a, "b": found.b, "each": found.each}

    return side_by_side(request, "landscape", settings, measure, panel)
