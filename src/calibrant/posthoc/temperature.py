"""Temperature scaling: p = softmax(z / T), one T for all (RC §2; Guo 2017), solved exactly.

With β = 1/T, the mean NLL  L(β) = mean_n [log Σ_k exp(β z_nk) − β z_ny]  is convex in β, and

    L'(β) = mean_n [E_p z − z_y],      L''(β) = mean_n Var_p z.

Newton's steps inside a bracket find the root of L' in x = log β. The certificate is the change of sign of L' across the
bracket. Members [M, N, K] share T. `members` says which NLL is minimised: "each" is the mean over the members, which is
convex; "pooled" is that of their mean probability, which is not convex, so a coarse scan of log T finds the right
minimum first.

`objective="ece"` searches RC §4's pool {0.01, 0.02, …, 10} for the least ECE. `T=1.5` fixes T (DS A.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.binning import equal_width
from calibrant.functional.chunks import chunk_on, row_chunks
from calibrant.functional.pooling import pool
from calibrant.functional.root import Certificate, increasing_root
from calibrant.functional.scores import exp_
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap
from calibrant.types import Predictions

BOUNDS = (1e-6, 1e6)
"""T is searched between these bounds. Without an optimum inside, T is the bound, and the certificate says so."""
TOLERANCE = 5e-7
"""The width of the final bracket in log T."""
GRID = tuple(i / 100 for i in range(1, 1001))
"""RC §4: the temperature pool {0.01, 0.02, …, 10}."""
_IMPOSSIBLE = -1e300
"""Replaces −inf after the shift: its exp is 0 at every T, and 0 · z is 0 instead of NaN."""
_SAMPLE = 1 << 16  # logits in the subsample that finds the start
LARGE = 4 * _SAMPLE
"""With more logits than this, float32 passes come before those in float64."""
NEAR = 0.02
"""The largest step in log T that replaces a refit: the error of T is its square, that of NLL its fourth power."""


@dataclass(frozen=True, eq=False)
class TemperatureMap(FittedMap):
    """z / T."""

    temperature: Tensor
    method: ClassVar[str] = "temperature"
    keeps_label: ClassVar[bool] = True

    def transform(self, logits: Tensor) -> Tensor:
        return logits / self.temperature

    def summary(self) -> dict[str, Any]:
        return {"temperature": float(self.temperature)}


@dataclass(frozen=True)
class Temperature(Calibrator):
    """Temperature scaling: one T for all logits (Guo 2017), solved exactly.

    `objective="ece"` and a fixed `T` serve to repeat papers.
    """

    objective: Literal["nll", "ece"] = "nll"
    T: float | None = None
    members: Literal["pooled", "each"] = "pooled"
    bins: int = 15  # for objective="ece"
    name: ClassVar[str] = "temperature"
    map: ClassVar[type[FittedMap]] = TemperatureMap
    takes_members: ClassVar[bool] = True
    cost: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.T is None or (self.T > 0 and math.isfinite(self.T)), "T", "must be positive and finite")

    def solve(self, p: Predictions) -> FittedMap:
        assert p.logits is not None
        if self.T is not None:
            T, certificate = float(self.T), {"objective": "fixed"}
        elif self.objective == "ece":
            T, certificate = least_ece(p.logits, p.labels, self.bins)
        else:
            T, certificate = least_nll(p.logits, p.labels, self.members)
        return TemperatureMap(torch.tensor(T, dtype=torch.float64), record=certified(certificate))

    def refits(self, p: Predictions, fold: Tensor, fitted: FittedMap | None = None) -> Iterator[FittedMap]:
        """For many items, one Newton step from the T of all items. It is exact enough if a fold moves T little."""
        if self.T is None and self.objective == "nll" and p.logits is not None and p.logits.numel() > LARGE:
            fitted = fitted or self.solve(p)
            assert isinstance(fitted, TemperatureMap)
            certificate = fitted.record.certificate
            if certificate["bound"] is None and "impossible_labels" not in certificate:
                steps = _steps(p.logits, p.labels, self.members, float(fitted.temperature), fold)
                if float(steps.abs().max()) < NEAR:
                    yield from (TemperatureMap(fitted.temperature * math.exp(-x)) for x in steps.tolist())
                    return
        yield from super().refits(p, fold, fitted)


def least_nll(logits: Tensor, labels: Tensor, members: str = "pooled") -> tuple[float, dict[str, Any]]:
    """Return the T of the least NLL and its certificate."""
    z = logits[None] if logits.ndim == 2 else logits
    y = labels.to(z.device)
    whose = (
        "of the one model"
        if len(z) == 1
        else ("of the pooled prediction" if members == "pooled" else "mean of the members'")
    )
    certificate: dict[str, Any] = {"objective": "nll", "nll": whose}
    possible = torch.isfinite(z.gather(-1, y.expand(len(z), -1)[..., None])[..., 0]).all(0)
    if not bool(possible.all()):
        # the NLL of such an item is infinite at every T, so it cannot tell which T is better
        certificate["impossible_labels"] = int((~possible).sum())
        if not bool(possible.any()):
            raise InputError("temperature cannot be fitted: the logit of every label is -inf")
        keep = possible.nonzero()[:, 0]
        z, y = z.index_select(1, keep), y[keep]
    pooled = len(z) > 1 and members == "pooled"
    found = _exact(z, y, pooled)
    T = math.exp(-found.root)
    if found.bound == "high":
        T, certificate["reason"] = BOUNDS[0], "perfectly separable: NLL falls all the way to T = 0"
    elif found.bound == "low":
        T, certificate["reason"] = BOUNDS[1], "worse than uniform: NLL falls all the way to T = infinity"
    certificate |= {
        "T_low": math.exp(-found.high),
        "T_high": math.exp(-found.low),
        "gradient_at_T_low": found.f_high,
        "gradient_at_T_high": found.f_low,
        "sign_change": found.sign_change,
        "width": found.high - found.low,
        "evaluations": found.evaluations,
        "bound": {"high": "T_low", "low": "T_high", None: None}[found.bound],
    }
    return T, certificate


def _exact(z: Tensor, y: Tensor, pooled: bool) -> Certificate:
    """The root of L' in x = log β.

    For a large set, a subsample finds the start, float32 comes close to the root and gives the slope there, and two
    evaluations in float64 close the bracket. So only float64 decides.
    """
    low, high = -math.log(BOUNDS[1]), -math.log(BOUNDS[0])
    n, size = z.shape[1], z.shape[0] * z.shape[2]
    large = n * size > LARGE
    start = 0.0
    if large or pooled:
        few = torch.arange(0, n, max(1, n * size // _SAMPLE), device=z.device)
        rough = Slope(z.index_select(1, few), y[few], pooled)
        if pooled:
            grid = [low + (high - low) * i / 96 for i in range(97)]
            start = min(grid, key=rough.nll)
        start = increasing_root(rough, low, high, start, 1e-3).root
    slope = Slope(z, y, pooled)
    if large:
        start, steepness = _approach(Slope(z, y, pooled, torch.float32), start, low, high)
        found = increasing_root(lambda x: (slope.value(x), steepness), low, high, start - 0.25 * TOLERANCE, TOLERANCE)
    else:
        found = increasing_root(slope, low, high, start, TOLERANCE)
    if slope.separable and found.bound is None:
        # L' underflows to exactly 0 long before T = 0, and that zero is no optimum
        found = replace(found, root=high, low=high, high=high, bound="high")
    return found


def _approach(f: Slope, x: float, low: float, high: float) -> tuple[float, float]:
    """Take Newton's steps from x until they reach the precision of float32. Return x and the slope there."""
    slope = 1.0
    for _ in range(12):
        value, slope = f(x)
        if not slope > 0:
            break
        step = min(max(-value / slope, -2.0), 2.0)
        x = min(max(x + step, low), high)
        if abs(step) < 3e-4:  # the error that is left is about its square
            break
    return x, slope


def _steps(logits: Tensor, labels: Tensor, members: str, T: float, fold: Tensor) -> Tensor:
    """For each fold, Newton's step in x = log β from the optimum of all items to that of all items outside the fold."""
    z = logits[None] if logits.ndim == 2 else logits
    slope = Slope(z, labels.to(z.device), len(z) > 1 and members == "pooled", torch.float32)
    beta, fold = 1 / T, fold.to(z.device)
    first, second = (torch.cat(c).double() for c in zip(*slope.by_item(beta), strict=True))
    within = torch.stack([torch.bincount(fold, v) for v in (first, second)])
    return (-(first.sum() - within[0]) / (beta * (second.sum() - within[1]))).cpu()


class Slope:
    """x = log β → (L'(β), dL'/dx), in one chunked pass of any precision. Sums over items are in float64."""

    def __init__(self, z: Tensor, y: Tensor, pooled: bool, dtype: torch.dtype = torch.float64) -> None:
        self.z, self.pooled, self.dtype = z, pooled, dtype
        self.top = z.amax(-1, keepdim=True)
        y = y.expand(len(z), -1)[..., None]
        self.label = (z.gather(-1, y).to(dtype) - self.top.to(dtype))[..., 0]
        self.chunks = row_chunks(z)
        self.separable = bool((self.label == 0).all())
        self.least = _IMPOSSIBLE if dtype == torch.float64 else -1e30
        self.blocked = bool(torch.isneginf(z.amin()))
        self.room = z.new_empty((2, len(z), self.chunks[0].stop, z.shape[2]), dtype=dtype)

    def __call__(self, x: float) -> tuple[float, float]:
        beta = math.exp(x)
        sums = [torch.stack([c.sum(dtype=torch.float64) for c in chunk]) for chunk in self.by_item(beta)]
        first, second = (torch.stack(sums).sum(0) / self.z.shape[1]).tolist()
        return first, beta * second

    def by_item(self, beta: float) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the first and second derivative by β of each item's loss, chunk by chunk."""
        for mean, variance, log_p in self._moments(beta):
            if self.pooled:
                # w_m ∝ p_m(y): the weight of a member is its share of the pooled probability
                w = torch.softmax(log_p, 0)
                average = (w * mean).sum(0)
                yield average, (w * (variance + mean * (average - mean))).sum(0)
            else:
                yield mean.mean(0), variance.mean(0)

    def value(self, x: float) -> float:
        """L'(β) alone, which saves a third of the pass."""
        sums = []
        for mean, _, log_p in self._moments(math.exp(x), second=False):
            weighted = torch.softmax(log_p, 0) * mean if self.pooled else mean / len(mean)
            sums.append(weighted.sum(dtype=torch.float64))
        return float(torch.stack(sums).sum()) / self.z.shape[1]

    def nll(self, x: float) -> float:
        """The mean NLL of the pooled prediction at x."""
        total = 0.0
        for _, _, log_p in self._moments(math.exp(x)):
            total -= float(torch.logsumexp(log_p, 0).sum())
        return total / self.z.shape[1] + math.log(len(self.z))

    def _moments(self, beta: float, second: bool = True) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield E_p z − z_y, Var_p z (0 without `second`) and log p_y, per member and item."""
        for at in self.chunks:
            size = at.stop - at.start
            z = self.room[0][:, :size].copy_(self.z[:, at]).sub_(self.top[:, at])
            if self.blocked:
                z.clamp_min_(self.least)
            label = self.label[:, at]
            e = exp_(torch.mul(z, beta, out=self.room[1][:, :size]))
            total = e.sum(-1)
            mean = e.mul_(z).sum(-1) / total
            variance = torch.zeros_like(mean)
            if second:
                variance = (e.mul_(z).sum(-1) / total - mean * mean).clamp_min_(0)
            yield mean - label, variance, beta * label - torch.log(total)


def least_ece(logits: Tensor, labels: Tensor, bins: int = 15) -> tuple[float, dict[str, Any]]:
    """Return the smallest T of RC's pool with the least ECE, and its certificate."""
    shifted = (logits.double() - logits.double().amax(-1, keepdim=True)).clamp_min_(-1e30)
    found = _ece_of(shifted, labels, bins, GRID).numpy()
    best = int(found.argmin())  # the first of equal ones
    return GRID[best], {
        "objective": "ece",
        "ece": float(found[best]),
        "grid": [GRID[0], GRID[-1], len(GRID)],
        "bins": bins,
    }


def _ece_of(z: Tensor, labels: Tensor, bins: int, temperatures: Sequence[float]) -> Tensor:
    """The ECE at each temperature, [T], of logits whose largest is 0. It treats as many at once as fit into a chunk."""
    y, n = labels.to(z.device), len(labels)
    hit, found = z.argmax(-1) == y, []
    each = torch.tensor(temperatures, dtype=z.dtype, device=z.device)
    for t in torch.split(each, 1 if z.ndim == 3 else max(1, chunk_on(z.device) // z.numel())):
        if z.ndim == 3:
            confidence, predicted = pool(z / t).exp().max(-1)
            hit = predicted == y
        else:
            confidence = 1 / (z / t[:, None, None]).exp_().sum(-1)
        at = equal_width(confidence, bins).view(len(t), n) + bins * torch.arange(len(t), device=z.device)[:, None]
        hits = hit.double().expand(len(t), n)
        said, right = (
            torch.bincount(at.view(-1), values.double().reshape(-1), minlength=len(t) * bins).view(-1, bins)
            for values in (confidence, hits)
        )
        found.append(((said - right) / n).abs().sum(-1).cpu())
    return torch.cat(found)
