"""Every fitted map as an `nn.Module` of plain tensor operations, so that torch.export and ONNX can follow it.

A map that is a formula runs as it is, its tensors bound as buffers (`Bound`). Maps that look something up (bins, knots,
steps) use `torch.bucketize`, numpy or a loop over classes, which ONNX does not have or which makes huge graphs; their
layers here find the place by a branch-free binary search, `place`: log₂ E rounds of one gather and one comparison,
for all classes at once. A test holds every layer against its map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from calibrant.functional.probabilities import FLOOR
from calibrant.posthoc.irm import IrmMap
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.one_vs_rest import joined, odds, top_odds
from calibrant.posthoc.order_preserving import OrderPreservingMap
from calibrant.posthoc.scaling_binning import ScalingBinningMap
from calibrant.posthoc.spline import SplineWithinMap
from calibrant.posthoc.tempered import still_impossible, tempered
from calibrant.posthoc.toplabel import Top, TopLabelMap, log_sum_exp, spread, top_of_logits


class Bound(nn.Module):
    """A map whose `transform` is already plain operations, with its tensors as buffers."""

    def __init__(self, fitted: FittedMap) -> None:
        super().__init__()
        self.fitted = fitted
        for name, tensor in fitted.tensors().items():
            self.register_buffer(name, tensor.clone())

    def forward(self, logits: Tensor) -> Tensor:
        bound = {name: getattr(self, name) for name in self.fitted.tensors()}
        return replace(self.fitted, **bound).transform(logits)


def stacked(columns: Sequence[Tensor], length: int, fill: float | None) -> Tensor:
    """[C, length]: columns of different lengths, padded with `fill` (None: with the last value)."""
    ends = [c[-1:] if fill is None else c.new_full((1,), fill) for c in columns]
    return torch.stack([torch.cat([c, end.expand(length - len(c))]) for c, end in zip(columns, ends, strict=True)])


def rounds(longest: int) -> int:
    """2^m − 1 places that hold `longest`: what a binary search of m rounds sees."""
    return (1 << max(1, longest).bit_length()) - 1


def place(score: Tensor, edges: Tensor, right: bool) -> Tensor:
    """How many edges of its column lie below each score (`right`: at it or below); edges[C, 2^m − 1], score[..., C]."""
    flat, width = edges.reshape(-1), edges.shape[1]
    start = torch.arange(edges.shape[0], device=score.device) * width
    found = torch.zeros_like(score, dtype=torch.long)
    step = (width + 1) // 2
    while step:
        edge = flat[start + found + (step - 1)]
        found = found + step * ((edge <= score) if right else (edge < score)).long()
        step //= 2
    return found


def pick(values: Tensor, index: Tensor) -> Tensor:
    """values[C, E] at index[..., C] of each column."""
    return values.reshape(-1)[index + torch.arange(values.shape[0], device=index.device) * values.shape[1]]


class Steps(nn.Module):
    """Step functions, one a column: values[i] between edges[i − 1] and edges[i]."""

    edges: Tensor
    values: Tensor

    def __init__(self, edges: Sequence[Tensor], values: Sequence[Tensor], right: bool = False) -> None:
        super().__init__()
        width = rounds(max(len(e) for e in edges))
        self.right = right
        self.register_buffer("edges", stacked(edges, width, torch.inf))
        self.register_buffer("values", stacked(values, width + 1, None))

    def forward(self, score: Tensor) -> Tensor:
        return pick(self.values, place(score, self.edges, self.right))


class Kept(nn.Module):
    """Steps some of which have seen no item: there the score stays as it is."""

    seen: Tensor

    def __init__(self, edges: Sequence[Tensor], values: Sequence[Tensor], seen: Sequence[Tensor]) -> None:
        super().__init__()
        self.steps = Steps(edges, values)
        self.register_buffer("seen", stacked([s.double() for s in seen], self.steps.values.shape[1], None))

    def forward(self, score: Tensor) -> Tensor:
        index = place(score, self.steps.edges, right=False)
        return torch.where(pick(self.seen, index) > 0, pick(self.steps.values, index), score)


class Linear(nn.Module):
    """Functions linear between their knots and constant outside, one a column."""

    x: Tensor
    y: Tensor

    def __init__(self, x: Sequence[Tensor], y: Sequence[Tensor]) -> None:
        super().__init__()
        width = rounds(max(len(each) for each in x) + 1)  # one knot at +inf ends every column
        self.register_buffer("x", stacked(x, width, torch.inf))
        self.register_buffer("y", stacked(y, width, None))

    def forward(self, p: Tensor) -> Tensor:
        left = (place(p, self.x, right=True) - 1).clamp_min(0)
        x, y = pick(self.x, left), pick(self.y, left)
        gap = pick(self.x, left + 1) - x
        share = (p - x).clamp_min(0.0) / torch.where(gap > 0, gap, torch.ones_like(gap))
        return y + share * (pick(self.y, left + 1) - y)


class TopLabel(nn.Module):
    """The predicted class gets `form` of its confidence, or of its log-odds; the others share the rest."""

    def __init__(self, fitted: TopLabelMap, form: nn.Module, *, of_odds: bool = False) -> None:
        super().__init__()
        self.form, self.of_odds, self.floor = form, of_odds, fitted.floor

    def forward(self, logits: Tensor) -> Tensor:
        top: Top = top_of_logits(logits)
        score = top_odds(top).score if self.of_odds else top.confidence
        confidence = self.form(score[..., None])[..., 0].clamp(self.floor, 1 - self.floor)
        return spread(logits, top.predicted, confidence)


class EachClass(nn.Module):
    """Every class's probability through its own function; the reader's softmax normalises."""

    def __init__(self, form: nn.Module, floor: float) -> None:
        super().__init__()
        self.form, self.floor = form, floor

    def forward(self, logits: Tensor) -> Tensor:
        q = self.form(torch.softmax(logits, -1)).clamp_min(self.floor)
        return torch.where(torch.isneginf(logits), logits, torch.log(q))


class EachOdds(nn.Module):
    """Every class's log-odds against the rest through its own function, then normalised."""

    def __init__(self, form: nn.Module) -> None:
        super().__init__()
        self.form = form

    def forward(self, logits: Tensor) -> Tensor:
        return joined(torch.log(self.form(odds(logits).score)), logits)


class Platt(nn.Module):
    """Step values of σ(a s + b)."""

    a: Tensor
    b: Tensor

    def __init__(self, fitted: ScalingBinningMap) -> None:
        super().__init__()
        self.register_buffer("a", fitted.a.clone())
        self.register_buffer("b", fitted.b.clone())
        self.steps = Steps([fitted.edges], [fitted.value])

    def forward(self, score: Tensor) -> Tensor:
        out: Tensor = self.steps(torch.sigmoid(self.a * score + self.b))
        return out


class Interval(nn.Module):
    """Venn–Abers: p₁ / (1 − p₀ + p₁)."""

    def __init__(self, low: Steps, high: Steps) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, score: Tensor) -> Tensor:
        p0, p1 = self.low(score), self.high(score)
        out: Tensor = p1 / (1 - p0 + p1)
        return out


class Irm(nn.Module):
    """(1 − ε) f(p) + ε p with one f for all classes."""

    def __init__(self, fitted: IrmMap) -> None:
        super().__init__()
        self.f, self.epsilon = Linear([fitted.x], [fitted.y]), fitted.epsilon

    def forward(self, logits: Tensor) -> Tensor:
        p = torch.softmax(logits, -1).clamp_min(FLOOR)
        q = (1 - self.epsilon) * self.f(p[..., None])[..., 0] + self.epsilon * p
        return still_impossible(torch.log(q), logits)


class Within(nn.Module):
    """The mass of the r highest classes through the spline."""

    def __init__(self, fitted: SplineWithinMap) -> None:
        super().__init__()
        self.form, self.within = Linear([fitted.x], [fitted.y]), fitted.within

    def forward(self, logits: Tensor) -> Tensor:
        highest = logits.topk(self.within, -1).indices
        inside = torch.zeros_like(logits).scatter(-1, highest, 1.0) > 0
        log_in = log_sum_exp(logits.masked_fill(~inside, -torch.inf))
        log_out = log_sum_exp(logits.masked_fill(inside, -torch.inf))
        mass = self.form(torch.sigmoid(log_in - log_out))
        shift = torch.where(inside, torch.log(mass) - log_in, torch.log1p(-mass) - log_out)
        return torch.where(torch.isneginf(log_out), logits, logits + shift)


class Increasing(nn.Module):
    """g of the tempered log-probabilities: linear between knots, with its slopes also outside of them."""

    temperature: Tensor
    height: Tensor
    slope: Tensor

    def __init__(self, fitted: OrderPreservingMap) -> None:
        super().__init__()
        knots, slopes = fitted.knots, fitted.slopes
        height = torch.cat([knots.new_zeros(1), torch.cumsum(slopes[1:-1] * torch.diff(knots), 0)])
        # by segment: the knot that it is measured from (the first one from its right end), g there, the slope
        self.knot = Steps([knots], [torch.cat([knots[:1], knots])])
        width = self.knot.values.shape[1]
        self.register_buffer("height", stacked([torch.cat([height[:1], height])], width, None))
        self.register_buffer("slope", stacked([slopes], width, None))
        self.register_buffer("temperature", fitted.temperature.clone())

    def forward(self, logits: Tensor) -> Tensor:
        x = tempered(logits, self.temperature, 0.0)
        finite = x.masked_fill(torch.isneginf(x), 0.0)[..., None]
        index = place(finite, self.knot.edges, right=False)
        out = pick(self.height, index) + pick(self.slope, index) * (finite - pick(self.knot.values, index))
        return still_impossible(out[..., 0], x)
