"""The probes `variance`, `fourier` and `neighbours`: what feature maps hold, by depth (SS Fig. 5, 6b, D.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import SEEDS, compared, over, with_interval
from calibrant.diagnostics import feature_fourier, feature_neighbours, feature_variance
from calibrant.diagnostics.feature_fourier import HIGH, FeatureFourier
from calibrant.diagnostics.feature_neighbours import FeatureNeighbours
from calibrant.diagnostics.feature_variance import FeatureVariance
from calibrant.ensembles.reference import Reference
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, by_depth, curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def variance(request: Request) -> Probed:
    split, passes, layers = request.splits[0], request.options["passes"], request.options["layers"]

    def measure(model: Reference) -> Measured:
        found = feature_variance(request.network(model), request.few(model, split), layers=layers, passes=passes)
        arrays = {"data": found.data} | ({} if found.model is None else {"model": found.model})
        record = {"split": split, "items": found.data.shape[1], "passes": 1 if found.model is None else passes}
        record |= {"layers": list(found.layers), "sizes": [list(size) for size in found.sizes]}
        return record | {kind: t.mean(1).tolist() for kind, t in arrays.items()}, arrays

    settings = {"split": request.few_hash(split), "passes": passes, "layers": layers}
    return side_by_side(request, "variance", settings, measure, variance_panel)


def fourier(request: Request) -> Probed:
    split, layers, dropout = request.splits[0], request.options["layers"], request.options["dropout"]

    def measure(model: Reference) -> Measured:
        few = request.few(model, split)
        found = feature_fourier(request.network(model), few, layers=layers, dropout=dropout)
        return _by_layer(split, found.sizes, found.log_amplitude, "log_amplitude", "amplitude")

    settings = {"split": request.few_hash(split), "dropout": dropout, "layers": layers}
    return side_by_side(request, "fourier", settings, measure, fourier_panel)


def neighbours(request: Request) -> Probed:
    split, layers = request.splits[0], request.options["layers"]

    def measure(model: Reference) -> Measured:
        found = feature_neighbours(request.network(model), request.few(model, split), layers=layers)
        return _by_layer(split, found.sizes, found.covariance, "covariance", "covariance")

    settings = {"split": request.few_hash(split), "layers": layers}
    return side_by_side(request, "neighbours", settings, measure, neighbours_panel)


def _by_layer(
    split: str, sizes: dict[str, tuple[int, int]], values: dict[str, Tensor], key: str, name: str
) -> Measured:
    """Means over items for JSON, and each layer's array."""
    record: dict[str, Any] = {"split": split, "items": len(next(iter(values.values()))), "layers": list(values)}
    record |= {"sizes": [list(sizes[layer]) for layer in values]}
    record |= {key: {layer: each.mean(0).tolist() for layer, each in values.items()}}
    return record, {f"{name}.{layer}": each for layer, each in values.items()}


SHOWN = 4


def variance_panel(found: Sequence[Result]) -> Panel:
    kinds = [
        (kind, words)
        for kind, words in (
            ("model", "model uncertainty: standard deviation over passes with dropout"),
            ("data", "data uncertainty: standard deviation over the points of a map"),
        )
        if any(kind in r.arrays for r in found)
    ]
    figures, rows, stages = [], [], min(SHOWN, max(len(variance_of(r).ends) for r in found))
    for kind, words in kinds:
        having = [r for r in found if kind in r.arrays]
        held = [variance_of(r) for r in having]
        what = f"the {kind} uncertainty at the ends of the stages"
        caption = f"{words.capitalize()}, by depth. {compared(having, [each.at_ends(kind) for each in held], what)}"
        figures.append(
            Figure(_depth(having, [each.of(kind) for each in held], words.partition(":")[0]), caption.strip())
        )
        for r, each in zip(having, held, strict=True):
            cells = [with_interval(over(each.of(kind)[i])) for i in each.ends[:SHOWN]]
            rows.append((f"{r.name}, {kind}", *cells, *["–"] * (stages - len(cells))))
    head = ("network, uncertainty", *(f"end of stage {i + 1}" for i in range(stages)))
    without = [r.name for r in found if "model" not in r.arrays]
    notes = [f"{n} has no dropout, so its passes are all alike and it has no model uncertainty." for n in without]
    return Panel(
        "How much do the feature maps vary?",
        "Ensembles and smoothing layers make feature maps vary less (SS Proposition 2.1, Fig. 5).",
        figures,
        [Table("Standard deviations, averaged over channels, points and items", head, rows)],
        [
            *notes,
            f"{found[0].record['items']} items of {found[0].record['split']}; "
            f"{found[0].record['passes']} passes. A stage is a run of equally large maps. Intervals are over items.",
            SEEDS,
        ],
    )


def variance_of(r: Result) -> FeatureVariance:
    """From what was kept of it."""
    return FeatureVariance(
        tuple(r.record["layers"]), tuple(_sizes(r).values()), r.arrays["data"], r.arrays.get("model")
    )


def fourier_of(r: Result) -> FeatureFourier:
    """From what was kept of it."""
    return FeatureFourier({name: r.arrays[f"amplitude.{name}"] for name in r.record["layers"]}, _sizes(r))


def _neighbours_of(r: Result) -> FeatureNeighbours:
    return FeatureNeighbours({name: r.arrays[f"covariance.{name}"] for name in r.record["layers"]}, _sizes(r))


def _sizes(r: Result) -> dict[str, tuple[int, int]]:
    return {name: (h, w) for name, (h, w) in zip(r.record["layers"], r.record["sizes"], strict=True)}


def _depth(found: Sequence[Result], values: Sequence[Sequence[Tensor] | Tensor], ylabel: str) -> Axes:
    """`values[network][layer]`. The longest list of layers is the axis; others have points where names agree."""
    axis: list[str] = max((r.record["layers"] for r in found), key=len)
    drawn = []
    for r, each in zip(found, values, strict=True):
        layers = r.record["layers"]
        at = [(axis.index(name), i) for i, name in enumerate(layers) if name in axis]
        if len(at) < 2:  # another architecture: by number
            at = [(i, i) for i in range(len(layers))]
        drawn.append(Curve.of(r.name, [x for x, _ in at], [over(each[i]).to_dict() for _, i in at]))
    return by_depth(drawn, axis, ylabel)


def fourier_panel(found: Sequence[Result]) -> Panel:
    held = [fourier_of(r) for r in found]
    figures, rows = [], []
    for stage in range(min(SHOWN, *(len(each.ends) for each in held))):
        layers = [each.ends[stage] for each in held]
        pairs = list(zip(found, held, layers, strict=True))
        high = [each.high(layer) for _, each, layer in pairs]
        drawn = [
            Curve.of(r.name, each.frequencies(layer).tolist(), [over(c).to_dict() for c in each.relative(layer).T])
            for r, each, layer in pairs
        ]
        verdict = compared(found, high, f"the log-amplitude at {HIGH}π and above")
        ax = curves(drawn, "frequency, in units of π", "log-amplitude, relative to frequency 0")
        where = ", ".join(dict.fromkeys(layers))
        figures.append(Figure(ax, f"End of stage {stage + 1} ({where}): low-pass filters fall to the right. {verdict}"))
        rows += [
            (f"{r.name}, end of stage {stage + 1}", with_interval(over(h))) for r, h in zip(found, high, strict=True)
        ]
    return Panel(
        "Which frequencies do the feature maps hold?",
        "Dropout adds high frequencies, and smoothing filters them out (SS Proposition 2.2, Fig. 6b).",
        figures,
        [Table(f"Log-amplitude at {HIGH}π and above, relative to frequency 0", ("network", "mean over items"), rows)],
        [
            f"{found[0].record['items']} items of {found[0].record['split']}. Diagonal of the two-dimensional "
            "transform, root mean square over channels, of every item; bands are 95% intervals over items.",
            SEEDS,
        ],
    )


def neighbours_panel(found: Sequence[Result]) -> Panel:
    held = [_neighbours_of(r) for r in found]
    next_ones = [[each.correlation(layer)[:, 1] for layer in each.covariance] for each in held]
    at_ends = [torch.stack([each.correlation(layer)[:, 1] for layer in each.ends]).mean(0) for each in held]
    verdict = compared(found, at_ends, "the correlation of neighbours at the ends of the stages")
    caption = f"Correlation of a point with the next one, by depth. {verdict}".strip()
    figures = [Figure(_depth(found, next_ones, "correlation of neighbours"), caption)]
    drawn = []
    for r, each in zip(found, held, strict=True):
        far = each.correlation(each.ends[0]).T
        drawn.append(Curve.of(r.name, list(range(len(far))), [over(column).to_dict() for column in far]))
    ax = curves(drawn, "distance in points", "correlation")
    ax.locator_params(axis="x", integer=True)
    figures.append(
        Figure(ax, "By distance, at the end of stage 1: the slower it falls, the more smoothing can average.")
    )
    stages = min(SHOWN, max(len(each.ends) for each in held))
    rows = []
    for r, each in zip(found, held, strict=True):
        cells = [with_interval(over(each.correlation(layer)[:, 1])) for layer in each.ends[:SHOWN]]
        rows.append((r.name, *cells, *["–"] * (stages - len(cells))))
    return Panel(
        "How alike are neighbouring points?",
        "Smoothing averages neighbours as an ensemble averages members; that they are alike is its premise (SS D.1).",
        figures,
        [Table("Correlation of neighbours", ("network", *(f"end of stage {i + 1}" for i in range(stages))), rows)],
        [
            f"{found[0].record['items']} items of {found[0].record['split']}, without dropout. Covariances over items, "
            "averaged over channels and points, along both axes.",
            SEEDS,
        ],
    )
