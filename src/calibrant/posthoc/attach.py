"""`attach(model, map)`: one `nn.Module` of the model and its map, ready to be exported.

It returns `map(model(x))`: logits whose softmax gives the calibrated probabilities. It takes the same models as
`calibrant.predict`: they may return `.logits` or a dict, take inputs by name, or return one logit per item ([N] or
[N, 1], that of class 1), which becomes two. With a map of the top label, the softmax gives the predicted label its new
confidence (`toplabel.py`); the label itself is the argmax of the model's own logits. The map computes in float64,
whatever the precision of the model: `.half()` and `.to(torch.bfloat16)` move its buffers to a device at most, and leave
them in float64.

The module works with `torch.export.export` and `torch.onnx.export(dynamo=True)`, with a dynamic batch
(`docs/deployment.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from calibrant.errors import InputError, MapError
from calibrant.functional.model_output import logits_of
from calibrant.functional.segmentation import classes_back, classes_last
from calibrant.posthoc.confidence_model import ConfidenceMap
from calibrant.posthoc.map import Chain, FittedMap, Parameters


class Attached(nn.Module):
    """Abstract: the model, and what comes after it. A subclass writes `forward`, with the arguments of `logits`."""

    def __init__(self, model: nn.Module, class_axis: int | None) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"attach needs an nn.Module that returns logits, not {type(model).__name__}")
        super().__init__()
        self.model = model
        self.class_axis: int | None = getattr(model, "class_axis", None) if class_axis is None else class_axis

    # x has a name of its own, because torch.export nests the dynamic shapes of *args one level deeper
    def logits(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """The model's own logits, classes last."""
        output = self.model(*args, **kwargs) if x is None else self.model(x, *args, **kwargs)
        return classes_last(logits_of(output), self.class_axis, "the model's output")


class Calibrated(Attached):
    """The model, then the map."""

    def __init__(self, model: nn.Module, fitted: FittedMap, class_axis: int | None = None) -> None:
        super().__init__(model, class_axis)
        self.calibration = MapLayer(fitted)
        self.train(model.training)

    def forward(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        return classes_back(self.calibration(self.logits(x, *args, **kwargs)), self.class_axis)


class Float64(nn.Module):
    """Abstract: keeps its buffers in float64 if the model is moved to another precision."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():  # without this, .half() would round the temperature to three digits
            owner, _, own = name.rpartition(".")
            moved = self.get_buffer(name).device
            setattr(self.get_submodule(owner), own, buffer if moved == buffer.device else buffer.to(moved))
        return self


class MapLayer(Float64):
    """The map as a layer in float64, for input of any precision; the output is at least float32."""

    def __init__(self, fitted: FittedMap) -> None:
        super().__init__()
        self.layer = layer(fitted)
        self.fitted = fitted

    def forward(self, logits: Tensor) -> Tensor:
        out: Tensor = self.layer(self.fitted.columns(logits).double())
        return out.to(torch.promote_types(logits.dtype, torch.float32))


def attach(model: nn.Module, fitted: FittedMap, *, class_axis: int | None = None) -> Calibrated:
    """Return the model, not copied, and the map as one module; `class_axis` is as in `calibrant.predict`."""
    if not isinstance(fitted, FittedMap):
        raise InputError(f"attach needs a fitted map (calibrant.fit, calibrant.load), not {type(fitted).__name__}")
    return Calibrated(model, fitted, class_axis)


class Buffers(nn.Module):
    """Holds the tensors of a map or a rule as buffers, so that they move with the model."""

    def __init__(self, source: Parameters) -> None:
        super().__init__()
        self.source = source
        for name, tensor in source.tensors().items():
            self.register_buffer(name, tensor.clone())

    def current(self) -> Any:
        """The map or rule with the buffers as its tensors."""
        held = {name: getattr(self, name) for name in self.source.tensors()}
        return replace(cast(Any, self.source), **held)


class Bound(Buffers):
    """A map as a layer from float64 logits to float64 logits."""

    def forward(self, logits: Tensor) -> Tensor:
        out: Tensor = self.current().transform(logits)
        return out


def layer(fitted: FittedMap) -> nn.Module:
    """The layer of a map. For a chain it holds the layers of the parts, in order."""
    if isinstance(fitted, Chain):
        return nn.Sequential(*(layer(part) for part in fitted.maps))
    if isinstance(fitted, ConfidenceMap):
        raise MapError(
            f"{fitted.method} cannot be attached: it needs the features of an item, which logits do not carry; "
            "apply it with map.predictions(p)"
        )
    return Bound(fitted)
