"""The probe `neighbours`: how alike neighbouring points of feature maps are (SS D.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from calibrant.cli.probes.by_layer import STAGES, depth_axes, layered, sizes_of, stage_head, values_of
from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import SEEDS, compared, mean_over, with_interval
from calibrant.diagnostics import feature_neighbours
from calibrant.diagnostics.feature_neighbours import FeatureNeighbours
from calibrant.ensembles.reference import Reference
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, curves


def neighbours(request: Request) -> Probed:
    split, layers = request.splits[0], request.options["layers"]

    def measure(model: Reference) -> Measured:
        found = feature_neighbours(request.network(model), request.few(model, split), layers=layers)
        return layered(split, found.sizes, found.covariance, "covariance")

    settings = {"split": request.few_hash(split), "layers": layers}
    return side_by_side(request, "neighbours", settings, measure, panel)


def panel(found: Sequence[Result]) -> Panel:
    held = [FeatureNeighbours(sizes_of(r), values_of(r, "covariance")) for r in found]
    next_ones = [[each.correlation(layer)[:, 1] for layer in each.covariance] for each in held]
    at_ends = [torch.stack([each.correlation(layer)[:, 1] for layer in each.ends]).mean(0) for each in held]
    verdict = compared(found, at_ends, "the correlation of neighbours at the ends of the stages")
    caption = f"Correlation of a point with the next one, by depth. {verdict}".strip()
    figures = [Figure(depth_axes(found, next_ones, "correlation of neighbours"), caption)]
    drawn = []
    for r, each in zip(found, held, strict=True):
        far = each.correlation(each.ends[0]).T
        drawn.append(Curve.of(r.name, list(range(len(far))), [mean_over(column).to_dict() for column in far]))
    axes = curves(drawn, "distance in points", "correlation")
    axes.locator_params(axis="x", integer=True)
    figures.append(
        Figure(axes, "By distance, at the end of stage 1: the slower it falls, the more smoothing can average.")
    )
    stages = min(STAGES, max(len(each.ends) for each in held))
    rows = []
    for r, each in zip(found, held, strict=True):
        cells = [with_interval(mean_over(each.correlation(layer)[:, 1])) for layer in each.ends[:STAGES]]
        rows.append((r.name, *cells, *["–"] * (stages - len(cells))))
    return Panel(
        "How alike are neighbouring points?",
        "Smoothing averages neighbouring points as an ensemble averages members. It assumes that they are alike "
        "(SS D.1).",
        figures,
        [Table("Correlation of neighbours", ("network", *stage_head(stages)), rows)],
        [
            f"{found[0].record['items']} items of {found[0].record['split']}, without dropout. Covariances over items, "
            "averaged over channels and points, along both axes.",
            SEEDS,
        ],
    )
