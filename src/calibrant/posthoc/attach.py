"""`attach(model, map)`: one `nn.Module` that is the model with its calibration baked in, ready to be exported.

It returns `map(model(x))`: logits whose softmax are the calibrated probabilities. The model may be whatever
`calibrant.predict` takes: it may return `.logits` or a dict, take inputs by name, or have one logit an item ([N] or
[N, 1], of class 1), of which two come out. For a map of the top label that
softmax gives the label the model predicted its new confidence (`toplabel.py`); the label itself is the argmax of the
model's own logits. Arithmetic is float64 whatever the model's precision, and the map's buffers keep their digits
under `.half()` or `.to(torch.bfloat16)`: only their device follows the model.

Works with `torch.export.export` and `torch.onnx.export(dynamo=True)`, the batch dynamic (`docs/deployment.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.errors import InputError, MapError
from calibrant.functional.binning import EDGE_SNAP
from calibrant.functional.model_output import logits_of
from calibrant.functional.probabilities import FLOOR
from calibrant.functional.segmentation import classes_back, classes_last
from calibrant.posthoc import layers
from calibrant.posthoc.bbq import BbqMap, BbqRestMap
from calibrant.posthoc.confidences import ConfidenceMap
from calibrant.posthoc.histogram import HistogramMap, HistogramMassMap, HistogramRestMap, soft_rate
from calibrant.posthoc.irm import IrmMap
from calibrant.posthoc.isotonic import IsotonicMap, IsotonicRestMap
from calibrant.posthoc.map import Chain, FittedMap
from calibrant.posthoc.order_preserving import OrderPreservingMap
from calibrant.posthoc.scaling_binning import ScalingBinningMap
from calibrant.posthoc.spline import SplineMap, SplineWithinMap
from calibrant.posthoc.venn_abers import VennAbersMap, VennAbersRestMap


class Calibrated(nn.Module):
    """The model, then the map."""

    def __init__(self, model: nn.Module, fitted: FittedMap, class_axis: int = -1) -> None:
        super().__init__()
        self.model = model
        self.calibration = Exact(fitted)
        self.class_axis = class_axis
        self.train(model.training)

    def forward(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        # not *args alone, whose dynamic shapes torch.export wants one level deeper
        return classes_back(self.calibration(self.logits(x, *args, **kwargs)), self.class_axis)

    def logits(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """What the model itself says, classes last."""
        output = self.model(*args, **kwargs) if x is None else self.model(x, *args, **kwargs)
        return classes_last(logits_of(output), self.class_axis, "the model's output")


class Exact(nn.Module):
    """The map's layer in float64, whatever comes in; float32 at least goes out."""

    def __init__(self, fitted: FittedMap) -> None:
        super().__init__()
        self.layer = layer(fitted)
        self.fitted = fitted

    def forward(self, logits: Tensor) -> Tensor:
        out: Tensor = self.layer(self.fitted.columns(logits).double())
        return out.to(torch.promote_types(logits.dtype, torch.float32))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():  # .half() would round the temperature to three digits
            owner, _, own = name.rpartition(".")
            moved = self.get_buffer(name).device
            setattr(self.get_submodule(owner), own, buffer if moved == buffer.device else buffer.to(moved))
        return self


def attach(model: nn.Module, fitted: FittedMap, *, class_axis: int = -1) -> nn.Module:
    """The model with the map baked in; `class_axis=1` for networks that label pixels. The model is not copied."""
    if not isinstance(model, nn.Module):
        raise InputError(f"attach needs an nn.Module that returns logits, not {type(model).__name__}")
    if not isinstance(fitted, FittedMap):
        raise InputError(f"attach needs a fitted map (calibrant.fit, calibrant.load), not {type(fitted).__name__}")
    return Calibrated(model, fitted, class_axis)


def layer(fitted: FittedMap) -> nn.Module:
    """The map as a layer float64 logits → float64 logits."""
    if isinstance(fitted, Chain):
        return nn.Sequential(*(layer(part) for part in fitted.maps))
    if isinstance(fitted, ConfidenceMap):
        raise MapError(
            f"{fitted.method} cannot be attached: it needs the features of an item, which logits do not carry; "
            "apply it with map.predictions(p)"
        )
    return LAYERS.get(type(fitted), layers.Bound)(fitted)


def _histogram(m: HistogramMap) -> nn.Module:
    edges = m.edges + (0.0 if isinstance(m, HistogramMassMap) else EDGE_SNAP / len(m.count))
    return layers.TopLabel(m, layers.Kept([edges], [soft_rate(m.hits, m.count)], [m.count]))


def _histogram_rest(m: HistogramRestMap) -> nn.Module:
    edges = m.edges + (EDGE_SNAP / m.count.shape[1] if m.scheme == "width" else 0.0)
    return layers.EachClass(layers.Kept(list(edges), list(soft_rate(m.hits, m.count)), list(m.count)), FLOOR)


def _columns(edges: Tensor, values: Tensor, offset: Tensor, right: bool) -> layers.Steps:
    """Of functions stored end to end (`steps.py`)."""
    spans = list(pairwise(offset.tolist()))
    return layers.Steps(
        [edges[i:j] for i, j in spans], [values[i + c : j + c + 1] for c, (i, j) in enumerate(spans)], right
    )


def _isotonic_rest(m: IsotonicRestMap) -> nn.Module:
    spans = list(pairwise(m.offset.tolist()))
    return layers.EachClass(layers.Linear([m.x[i:j] for i, j in spans], [m.y[i:j] for i, j in spans]), 0.0)


def _venn_abers(m: VennAbersMap) -> nn.Module:
    low, high = layers.Steps([m.edges0], [m.values0], right=True), layers.Steps([m.edges1], [m.values1])
    return layers.TopLabel(m, layers.Interval(low, high), of_odds=True)


def _venn_abers_rest(m: VennAbersRestMap) -> nn.Module:
    low, high = _columns(m.edges0, m.values0, m.offset0, True), _columns(m.edges1, m.values1, m.offset1, False)
    return layers.EachOdds(layers.Interval(low, high))


LAYERS: dict[type[FittedMap], Callable[[Any], nn.Module]] = {
    HistogramMap: _histogram,
    HistogramMassMap: _histogram,
    HistogramRestMap: _histogram_rest,
    IsotonicMap: lambda m: layers.TopLabel(m, layers.Linear([m.x], [m.soft_y])),
    IsotonicRestMap: _isotonic_rest,
    SplineMap: lambda m: layers.TopLabel(m, layers.Linear([m.x], [m.y])),
    SplineWithinMap: layers.Within,
    IrmMap: layers.Irm,
    ScalingBinningMap: lambda m: layers.TopLabel(m, layers.Platt(m), of_odds=True),
    BbqMap: lambda m: layers.TopLabel(m, layers.Steps([m.edges], [m.values]), of_odds=True),
    BbqRestMap: lambda m: layers.EachOdds(_columns(m.edges, m.values, m.offset, False)),
    VennAbersMap: _venn_abers,
    VennAbersRestMap: _venn_abers_rest,
    OrderPreservingMap: layers.Increasing,
}
"""Maps that look something up, each with its layer; every other map is a formula and runs as it is."""
