"""The range of the difference of two errors that a profile likelihood-ratio test accepts.

Each error θ has a pivot z(θ): the normal quantile of the rank that the observed statistic takes among simulations at θ
(the lines of `calibration_intervals`). The pivots of two predictors are jointly normal with the correlation ρ of the
simulations, so the distance of a pair of errors (α, β) from the data is

    Q(α, β) = z_a² + (z_b − ρ z_a)² / (1 − ρ²).

The interval holds those β − α for which the least Q along β − α = const exceeds the least Q overall by no more than
chance explains (the profile). Errors are ≥ 0, and a calibrated predictor is at that boundary. There the excess is χ²₁
or χ²₂, each half of the time: χ̄² (Self & Liang 1987). This is the distribution that `chance` and `critical` use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_FINE = 200  # errors tried besides the knots
_ROUNDS = 3  # fixed-point iterations for ρ, which depends on the end that is sought
_TAIL = 2.3263478740408408  # normal quantile of 99%; further out there are too few simulations to rank among
_IMPOSSIBLE = -1e3  # pivot of an error that no accuracy in [0, 1] gives

Rho = Callable[[Tensor], Callable[[Tensor], Tensor]]
"""α [A] → (β [A] → ρ(α, β) [A])."""


@dataclass(frozen=True)
class Curve:
    """The pivots z of the errors `value`, both [T]; z falls as the error grows. `drawn` [T, S] are the simulations."""

    value: Tensor
    z: Tensor
    drawn: Tensor | None = None

    def at(self, error: Tensor) -> Tensor:
        """The pivot of each error: linear between knots, impossible beyond the last."""
        i, share = self.between(error)
        inside = self.z[i - 1] + share * (self.z[i] - self.z[i - 1])
        return torch.where(error > float(self.value[-1]) * (1 + 1e-12) + 1e-15, _IMPOSSIBLE, inside)

    def between(self, error: Tensor) -> tuple[Tensor, Tensor]:
        """(index of the knot above each error, share of the way to it)."""
        i = torch.searchsorted(self.value, error).clamp(1, len(self.value) - 1)
        below, above = self.value[i - 1], self.value[i]
        share = torch.where(above > below, (error - below) / (above - below).clamp_min(1e-300), 1.0)
        return i, share.clamp(0, 1)


def curve(value: Tensor, drawn: Tensor, seen: float) -> Curve:
    """The pivots from simulations [T, S] of the statistic at each error: by rank, beyond 1% and 99% by normal tails."""
    count = drawn.shape[1]
    rank = ((drawn < seen).double() + (drawn == seen).double() / 2).mean(1)
    z = torch.special.ndtri(rank.clamp(0.5 / count, 1 - 0.5 / count))
    low, middle, high = torch.from_numpy(np.quantile(drawn.numpy(), (0.01, 0.5, 0.99), axis=1))
    above = _TAIL * (1 + (seen - high) / (high - middle).clamp_min(1e-300))
    below = -_TAIL * (1 + (low - seen) / (middle - low).clamp_min(1e-300))
    z = torch.where(seen > high, above, torch.where(seen < low, below, z)).clamp(_IMPOSSIBLE, -_IMPOSSIBLE)
    return Curve(value.cummax(0).values.contiguous(), z.cummin(0).values, drawn)


def correlation(a: Curve, b: Curve) -> Rho:
    """The correlation ρ(α, β) of the two predictors' simulations, linear between knots."""
    assert a.drawn is not None and b.drawn is not None
    x, y = (d - d.mean(1, keepdim=True) for d in (a.drawn, b.drawn))
    norms = x.norm(dim=1)[:, None] * y.norm(dim=1)
    table = torch.where(norms > 0, x @ y.T / norms.clamp_min(1e-300), 0.0)

    def rho(alpha: Tensor) -> Callable[[Tensor], Tensor]:
        i, share = a.between(alpha)
        rows = table[i - 1] + share[:, None] * (table[i] - table[i - 1])
        each = torch.arange(len(alpha))

        def at(beta: Tensor) -> Tensor:
            j, part = b.between(beta)
            left = rows[each, j - 1]
            return left + part * (rows[each, j] - left)

        return at

    return rho


def constant(rho: float) -> Rho:
    return lambda alpha: lambda beta: torch.full_like(beta, rho)


def chance(excess: float) -> float:
    """P(χ̄² > excess) for the equal mixture of χ²₁ and χ²₂."""
    return (math.erfc(math.sqrt(excess / 2)) + math.exp(-excess / 2)) / 2


def critical(level: float) -> float:
    """The excess that χ̄² exceeds with probability 1 − level."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > 1 - level else (low, middle)
    return high


def accepted_range(a: Curve, b: Curve, rho: Rho, most: float) -> tuple[float, float, float, float]:
    """(low, high) of β − α at an excess of `most`, then the excess of the least Q with β ≤ α and with β ≥ α."""
    alpha = _errors(a, b)
    za, zb, rho_at = a.at(alpha), b.at(alpha), rho(alpha)
    first, last = float(zb[0]), float(zb[-1])

    def beta_where(z: Tensor) -> Tensor:
        return _where(zb, alpha, z)

    best = beta_where(za)
    for _ in range(_ROUNDS):
        r = rho_at(best)
        best = beta_where(r * za)
    rest = (1 - r * r).clamp_min(1e-9)
    least = za.square() + ((r * za).clamp(last, first) - r * za).square() / rest
    base = float(least.min())
    room = base + most - za.square()
    ends, held = [], room >= 0
    nearest = least.argmin()
    for sign in (1.0, -1.0):
        beta = best
        for _ in range(_ROUNDS):
            r = rho_at(beta)
            target = r * za + sign * ((1 - r * r).clamp_min(1e-9) * room.clamp_min(0)).sqrt()
            beta = beta_where(target)
        held = held & (target >= last if sign > 0 else target <= first)
        held[nearest] = True  # the best pair is always accepted, whatever rounding does
        ends.append(beta - alpha)
    r = rho_at(alpha)
    same = za.square() + (zb - r * za).square() / (1 - r * r).clamp_min(1e-9)
    not_above = torch.where(best <= alpha, least, same).min()
    not_below = torch.where(best >= alpha, least, same).min()
    low, high = float(ends[0][held].min()), float(ends[1][held].max())
    return low, high, max(0.0, float(not_above) - base), max(0.0, float(not_below) - base)


def accepted_range_unpaired(a: Curve, b: Curve, z: float) -> tuple[float, float, float, float]:
    """The same when ρ is unknown: every β and α whose own pivots are at most z, and the least z for β ≤ α and β ≥ α."""
    error = _errors(a, b)
    za, zb, up = a.at(error), b.at(error), torch.tensor(z, dtype=torch.float64)
    low, high = _where(zb, error, up) - _where(za, error, -up), _where(zb, error, -up) - _where(za, error, up)
    not_above, not_below = torch.maximum(zb, -za).clamp_min(0).min(), torch.maximum(-zb, za).clamp_min(0).min()
    return float(low), float(high), float(not_above), float(not_below)


def _where(z: Tensor, error: Tensor, wanted: Tensor) -> Tensor:
    """The error at which the falling curve z takes the wanted value, or the nearest end."""
    i = torch.searchsorted(-z, -wanted).clamp(1, len(z) - 1)
    above, below = z[i - 1], z[i]
    share = torch.where(above > below, (above - wanted) / (above - below).clamp_min(1e-300), 0.0).clamp(0, 1)
    return error[i - 1] + share * (error[i] - error[i - 1])


def _errors(a: Curve, b: Curve) -> Tensor:
    """The errors to try: the knots of both curves, points just beyond, and a fine grid where pivots are moderate."""
    knots = torch.cat([a.value, b.value])
    top = float(knots.max())
    likely = max((float(c.value[c.z > -4].max()) if bool((c.z > -4).any()) else 0.0) for c in (a, b))
    fine = torch.linspace(0, likely, _FINE, dtype=torch.float64)
    errors: Tensor = torch.unique(torch.cat([knots, knots + 1e-9 * max(top, 1e-12), fine]))
    return errors
