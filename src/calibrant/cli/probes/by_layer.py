"""What the probes of feature maps share: how their numbers are stored, and a figure over the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from calibrant.cli.probes.results import Measured, Result
from calibrant.cli.probes.wording import mean_over
from calibrant.report.plots.lines import Curve, by_depth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGES = 4
"""How many stages get a column or a figure, at most."""


def layered(split: str, sizes: dict[str, tuple[int, int]], values: dict[str, Tensor], name: str) -> Measured:
    """Return the record (means over items) and the arrays of {layer: [items, …]}."""
    record: dict[str, Any] = {"split": split, "items": len(next(iter(values.values()))), **sizes_record(sizes)}
    record |= {name: {layer: each.mean(0).tolist() for layer, each in values.items()}}
    return record, {f"{name}.{layer}": each for layer, each in values.items()}


def sizes_record(sizes: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Return layers and sizes as JSON keeps them: in two lists, because their order matters."""
    return {"layers": list(sizes), "sizes": [list(size) for size in sizes.values()]}


def sizes_of(r: Result) -> dict[str, tuple[int, int]]:
    """Return {layer: (height, width)} from a record."""
    return {name: (h, w) for name, (h, w) in zip(r.record["layers"], r.record["sizes"], strict=True)}


def values_of(r: Result, name: str) -> dict[str, Tensor]:
    """Return {layer: [items, …]} from the arrays."""
    return {layer: r.arrays[f"{name}.{layer}"] for layer in r.record["layers"]}


def depth_axes(found: Sequence[Result], values: Sequence[Sequence[Tensor] | Tensor], ylabel: str) -> Axes:
    """Draw `values[network][layer]` over the layers of the deepest network; others have points where names agree."""
    axis: list[str] = max((r.record["layers"] for r in found), key=len)
    drawn = []
    for r, each in zip(found, values, strict=True):
        layers = r.record["layers"]
        at = [(axis.index(name), i) for i, name in enumerate(layers) if name in axis]
        if len(at) < 2:  # another architecture: by number
            at = [(i, i) for i in range(len(layers))]
        drawn.append(Curve.of(r.name, [x for x, _ in at], [mean_over(each[i]).to_dict() for _, i in at]))
    return by_depth(drawn, axis, ylabel)


def stage_head(stages: int) -> list[str]:
    """Return the table heads of the ends of the stages."""
    return [f"end of stage {i + 1}" for i in range(stages)]
