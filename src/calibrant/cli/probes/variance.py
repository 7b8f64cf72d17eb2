"""The probe `variance`: how much feature maps vary, by depth (SS Prop. 2.1, Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.cli.probes.by_layer import STAGES, depth_axes, sizes_of, sizes_record, stage_head
from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import SEEDS, compared, mean_over, with_interval
from calibrant.diagnostics import feature_variance
from calibrant.diagnostics.feature_variance import FeatureVariance
from calibrant.ensembles.reference import Reference
from calibrant.report.panels import Figure, Panel, Table

KINDS = {
    "model": "Model uncertainty: standard deviation over passes with dropout, by depth.",
    "data": "Data uncertainty: standard deviation over the points of a map, by depth.",
}


def variance(request: Request) -> Probed:
    split, passes, layers = request.splits[0], request.options["passes"], request.options["layers"]

    def measure(model: Reference) -> Measured:
        found = feature_variance(request.network(model), request.few(model, split), layers=layers, passes=passes)
        arrays = {"data": found.data} | ({} if found.model is None else {"model": found.model})
        record = {"split": split, "items": found.data.shape[1], "passes": 1 if found.model is None else passes}
        record |= sizes_record(found.sizes) | {kind: t.mean(1).tolist() for kind, t in arrays.items()}
        return record, arrays

    settings = {"split": request.few_hash(split), "passes": passes, "layers": layers}
    return side_by_side(request, "variance", settings, measure, panel)


def variance_of(r: Result) -> FeatureVariance:
    """Return what was measured, from what was stored of it."""
    return FeatureVariance(sizes_of(r), r.arrays["data"], r.arrays.get("model"))


def panel(found: Sequence[Result]) -> Panel:
    figures, rows, stages = [], [], min(STAGES, max(len(variance_of(r).ends) for r in found))
    for kind, caption in KINDS.items():
        having = [r for r in found if kind in r.arrays]
        if not having:
            continue
        held = [variance_of(r) for r in having]
        at_ends = [each.at_ends(kind) for each in held]
        verdict = compared(having, at_ends, f"the {kind} uncertainty at the ends of the stages")
        axes = depth_axes(having, [each.of(kind) for each in held], f"{kind} uncertainty")
        figures.append(Figure(axes, f"{caption} {verdict}".strip()))
        for r, each in zip(having, held, strict=True):
            cells = [with_interval(mean_over(each.at(kind, layer))) for layer in each.ends[:STAGES]]
            rows.append((f"{r.name}, {kind}", *cells, *["–"] * (stages - len(cells))))
    without = [r.name for r in found if "model" not in r.arrays]
    notes = [f"{n} has no dropout: all its passes are alike, and it has no model uncertainty." for n in without]
    return Panel(
        "How much do the feature maps vary?",
        "Ensembles and smoothing layers make feature maps vary less (SS Proposition 2.1, Fig. 5).",
        figures,
        [
            Table(
                "Standard deviations, averaged over channels, points and items",
                ("network, uncertainty", *stage_head(stages)),
                rows,
            )
        ],
        [
            *notes,
            f"{found[0].record['items']} items of {found[0].record['split']}; {found[0].record['passes']} passes. A "
            "stage is a run of layers with equally large maps. Intervals are over items.",
            SEEDS,
        ],
    )
