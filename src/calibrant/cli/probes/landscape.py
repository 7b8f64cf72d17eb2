"""The probe `landscape`: the loss on a plane around the weights or through checkpoints (SS Fig. 7, C.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibrant.cli.probes.objective import batch_size, objective
from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import SEEDS, compared, mean_over, plain, with_interval
from calibrant.diagnostics.landscape import Landscape, loss_landscape, plane_through
from calibrant.ensembles.dropout import dropouts
from calibrant.ensembles.ensemble import with_progress
from calibrant.ensembles.reference import Reference, resolve
from calibrant.errors import InputError
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.landscape import contour, levels_of, surface
from calibrant.training.distances import items_hash, network_hash
from calibrant.training.recipe import digest
from calibrant.types import Split

BATCHES = 4
"""Mini-batches at most: every point of the grid takes a pass over all of them."""
MARGIN = 0.3
"""How far the grid goes beyond the checkpoints that its plane goes through."""


def landscape(request: Request) -> Probed:
    points, masks, through = (request.options[k] for k in ("grid", "masks", "through"))
    count = min(request.options["batches"], BATCHES)
    if through and (len(through) != 2 or len(request.models) > 1):
        raise InputError("--through takes two checkpoints (runs of the same network) and one model: A --through B,C")
    others = [resolve(name).members[:1] for name in through or ()]
    settings: dict[str, Any] = {"grid": points, "masks": masks, "batches": count, "batch": batch_size(request)}
    settings |= {"through": [network_hash(each) for each in others] or None}
    settings |= {"items": items_hash(request.data[Split.TRAIN])}

    def measure(model: Reference) -> Measured:
        network = request.network(model)
        held = objective(request, model, count)
        options: dict[str, Any] = {"points": points, "loss": held.loss, "masks": masks if dropouts(network) else 0}
        description = "random, filter-normalised directions"
        if others:
            plane = plane_through(network, *(each.state_dict() for (each,) in others))
            x, y = zip(*plane.marks, strict=True)
            options |= {
                "plane": plane,
                "a": (min(x) - MARGIN, max(x) + MARGIN),
                "b": (min(y) - MARGIN, max(y) + MARGIN),
            }
            description = f"the plane through {model.name}, {' and '.join(through)}"
        rows = request.place("landscape") / f"{digest([settings, network_hash(model.members)])[:16]}.rows"
        title = f"landscape of {model.name}"
        found = loss_landscape(
            network,
            held.batches,
            store=rows,
            progress=lambda r: with_progress(list(r), title, show=request.progress),
            **options,
        )
        rows.unlink()
        record = {
            "points": points,
            "batches": len(held.batches),
            "plane": description,
            "marks": found.marks,
            "loss": held.description,
        }
        return record, {"a": found.a, "b": found.b, "each": found.each}

    return side_by_side(request, "landscape", settings, measure, panel)


HEAD = ("network", "loss at the weights", "rise within half a filter norm", "fluctuation between masks")
SHOWN = 3
"""Masks whose contours are drawn, at most."""


def panel(found: Sequence[Result]) -> Panel:
    held = [_landscape(r) for r in found]
    levels = levels_of([each.loss.numpy() for each in held])
    rises = [each.rise() for each in held]
    figures, rows = [], []
    for i, (r, each) in enumerate(zip(found, held, strict=True)):
        a, b = each.a.numpy(), each.b.numpy()
        for mask, loss in enumerate(each.loss[:SHOWN].numpy()):
            word = f", mask {mask + 1} of {len(each.loss)}" if len(each.loss) > 1 else ""
            verdict = compared([found[0], r], [rises[0], rises[i]], "the rise of the loss") if i and not mask else ""
            caption = (
                f"{r.name}{word}: lines of equal loss; the farther apart they lie, the flatter the loss. {verdict}"
            )
            figures.append(Figure(contour(a, b, loss, levels, each.marks), caption.strip()))
        caption = f"{r.name}: the same as a surface, cut off at a loss of {plain(float(levels[-1]))}."
        figures.append(Figure(surface(a, b, each.loss.mean(0).numpy(), levels), caption))
        middle = float(each.each[:, len(b) // 2, len(a) // 2].mean())
        noise = "–" if len(each.loss) < 2 else plain(float(each.loss.std(0).mean()))
        rows.append((r.name, plain(middle), with_interval(mean_over(rises[i])), noise))
    first = found[0].record
    return Panel(
        "How does the loss look around the weights?",
        "Smoothing and ensembles flatten the loss; under dropout it fluctuates from mask to mask (SS Fig. 7, C.2).",
        figures,
        [Table("The loss on a plane", HEAD, rows)],
        [
            f"{first['points']} × {first['points']} points, {first['batches']} mini-batches of training items; "
            f"{first['plane']}. All contours have the same levels.",
            "The rise is the mean over the points within 0.5 of the weights, with an interval over mini-batches. On "
            "another random plane it would be another number.",
            SEEDS,
        ],
    )


def _landscape(r: Result) -> Landscape:
    marks = tuple((float(x), float(y)) for x, y in r.record["marks"])
    return Landscape(r.arrays["a"], r.arrays["b"], r.arrays["each"], marks)
