"""`attach(model, rule)`: one `nn.Module` of the model, the rule's map and the rule; and the same as an ONNX file.
`posthoc.attach` attaches a fitted map without a rule.

The module returns what `rule(model(x))` decides: (predicted, accepted) for a threshold, (predicted, accepted, sets) for
prediction sets, (predicted, accepted, action) for costs. It computes in float64, whatever the precision of the model. A
graph reads logits alone, so a rule by group and randomised sets, which need more, are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.decisions.conformal import PredictionSets
from calibrant.decisions.rule import Rule
from calibrant.errors import MapError
from calibrant.functional.segmentation import classes_back
from calibrant.posthoc.attach import Attached, Buffers, Float64, layer
from calibrant.posthoc.attach import attach as attach_map
from calibrant.posthoc.map import Chain, FittedMap, Identity
from calibrant.posthoc.toplabel import TopLabelMap, top_of_logits


class RuleLayer(Float64):
    """Logits [N, K] → (predicted, *outputs of the rule)."""

    def __init__(self, rule: Rule) -> None:
        if rule.by == "group":
            raise MapError(
                "a rule by group needs the group of an item, which logits do not carry; call the rule itself"
            )
        if isinstance(rule, PredictionSets) and rule.randomised:
            raise MapError("randomised sets have no graph; choose the rule without randomised ties")
        *first, last = flat(rule.map or Identity())
        if any(isinstance(m, TopLabelMap) for m in first):
            raise MapError("a map follows a map of the top label in this rule; such a chain has no graph")
        super().__init__()
        self.map = rule.map or Identity()
        self.first, self.rule = nn.Sequential(*map(layer, first)), Buffers(rule)
        self.last: Any = layer(last)

    def forward(self, logits: Tensor) -> tuple[Tensor, ...]:
        z = self.first(self.map.columns(logits).double())
        mapped = self.last(z)
        unknown = logits.isnan().any(-1)
        own = self.last.current()
        if isinstance(own, TopLabelMap):  # logits cannot carry its confidence, and may have another label
            top = top_of_logits(z)
            confidence = own.confidence(top)
        else:
            top = top_of_logits(mapped)
            confidence = top.confidence
        return top.predicted, *self.rule.current().in_graph(mapped, top.predicted, confidence, unknown)


def flat(fitted: FittedMap) -> list[FittedMap]:
    """The maps of a chain of chains, first to last."""
    return [part for m in fitted.maps for part in flat(m)] if isinstance(fitted, Chain) else [fitted]


class RuleModel(Attached):
    """The model, then the rule. It decides about each pixel of a network that labels pixels."""

    def __init__(self, model: nn.Module, rule: Rule, class_axis: int | None = None) -> None:
        super().__init__(model, class_axis)
        self.decision = RuleLayer(rule)
        self.train(model.training)

    def forward(self, x: Any = None, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        z = self.logits(x, *args, **kwargs)
        if z.ndim == 2:
            return self.decision(z)  # type: ignore[no-any-return]
        found = self.decision(z.reshape(-1, z.shape[-1]))
        pixels = [t.reshape(*z.shape[:-1], *t.shape[1:]) for t in found]
        return tuple(t if t.ndim < z.ndim else classes_back(t, self.class_axis) for t in pixels)


def attach(model: nn.Module, fitted: FittedMap | Rule, *, class_axis: int | None = None) -> nn.Module:
    """Return one module: the model, then the fitted map or the rule. The model is not copied.

    With a map the module returns calibrated logits, with a rule its decisions. `class_axis` is as in
    `calibrant.predict`.
    """
    if not isinstance(fitted, Rule):
        return attach_map(model, fitted, class_axis=class_axis)
    return RuleModel(model, fitted, class_axis)


def write_rule_onnx(path: str | PathLike[str], rule: Rule) -> Path:
    """Write map and rule as one ONNX file with input `x`, the logits [N, K].

    The file is kept only if onnxruntime decides as PyTorch does. If logits moved by at most 1e-5 of their size are
    decided otherwise, either decision counts.
    """
    from calibrant.posthoc.onnx_export import need_onnx, write_graph

    need_onnx()
    if rule.record.k is None:
        raise MapError("a rule that was chosen on a top-1 set does not know its number of classes; choose it on logits")
    module = RuleModel(nn.Identity(), rule).eval()
    example = 3 * torch.randn(64, rule.record.k, generator=torch.Generator().manual_seed(64))

    def fault(found: Sequence[Tensor]) -> str:
        wrong = disagreeing(module, example, found)
        return f"onnxruntime decides {wrong} of 64 items differently from eager mode" if wrong else ""

    return write_graph(path, module, example, ["predicted", *rule.outputs], fault)


def disagreeing(module: nn.Module, x: Tensor, found: Sequence[Tensor]) -> int:
    """The number of items that are decided otherwise for every draw of the moved logits."""
    from calibrant.posthoc.onnx_export import moved

    agreed = torch.zeros(len(x), dtype=torch.bool)
    with torch.no_grad():
        for z in moved(x.double()):
            same = [(a == b).reshape(len(x), -1).all(1) for a, b in zip(found, module(z), strict=True)]
            agreed |= torch.stack(same).all(0)
    return int((~agreed).sum())
