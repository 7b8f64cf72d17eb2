"""How much do feature maps vary, and which frequencies do they hold? (SS Fig. 5 and 6b)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.diagnostics.feature_maps import stage_ends
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, by_depth, curves
from calibrant.report.probes import SEEDS, Result, compared, over, with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HIGH = 0.3
"""SS §2.2: MC dropout adds noise at frequencies of 0.3π and above."""
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
    figures, rows, stages = [], [], min(SHOWN, max(len(_ends(r)) for r in found))
    for kind, words in kinds:
        having = [r for r in found if kind in r.arrays]
        ends = [_ends(r) for r in having]
        values = [r.arrays[kind][at].mean(0) for r, at in zip(having, ends, strict=True)]
        what = f"the {kind} uncertainty at the ends of the stages"
        caption = f"{words.capitalize()}, by depth. {compared(having, values, what)}"
        figures.append(Figure(_depth(having, kind, words), caption.strip()))
        for r, at in zip(having, ends, strict=True):
            cells = [with_interval(over(r.arrays[kind][i])) for i in at[:SHOWN]]
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


def _ends(r: Result) -> list[int]:
    layers, sizes = r.record["layers"], [tuple(s) for s in r.record["sizes"]]
    return [layers.index(name) for name in stage_ends(dict(zip(layers, sizes, strict=True)))]


def _depth(found: Sequence[Result], kind: str, words: str) -> Axes:
    """The longest list of layers is the axis; other networks have a point where they share a name."""
    axis: list[str] = max((r.record["layers"] for r in found), key=len)
    drawn = []
    for r in found:
        layers = r.record["layers"]
        at = [(axis.index(name), i) for i, name in enumerate(layers) if name in axis]
        if len(at) < 2:  # another architecture: by number
            at = [(i, i) for i in range(len(layers))]
        each = [over(r.arrays[kind][i]).to_dict() for _, i in at]
        drawn.append(Curve.of(r.name, [x for x, _ in at], each))
    return by_depth(drawn, axis, words.partition(":")[0])


def fourier_panel(found: Sequence[Result]) -> Panel:
    stages = min(len(_ends(r)) for r in found)
    figures, rows = [], []
    for stage in range(min(stages, SHOWN)):
        curves_of = [_relative(r, r.record["layers"][_ends(r)[stage]]) for r in found]
        high = [a[:, f >= HIGH].mean(1) for f, a in curves_of]
        drawn = [
            Curve.of(r.name, f.tolist(), [over(column).to_dict() for column in a.T])
            for r, (f, a) in zip(found, curves_of, strict=True)
        ]
        where = ", ".join(dict.fromkeys(r.record["layers"][_ends(r)[stage]] for r in found))
        verdict = compared(found, high, f"the log-amplitude at {HIGH}π and above")
        ax = curves(drawn, "frequency, in units of π", "log-amplitude, relative to frequency 0")
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


def _relative(r: Result, layer: str) -> tuple[Tensor, Tensor]:
    a = r.arrays[f"amplitude.{layer}"].double()
    n = min(r.record["sizes"][r.record["layers"].index(layer)])
    return torch.arange(a.shape[1]) * 2 / n, a - a[:, :1]
