"""The linear operators θ → logits that `multinomial.py` fits: diagonal, full, and one function for all classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Weighted moments of each class's features, with weights w_n = p_nk(1 − p_nk): Σ w [K], mean and variance [K, D].

    The Hessian's block of a class is Σ w · (covariance + mean meanᵀ). The preconditioner uses it with the covariance
    replaced by the variances.
    """

    weight: Tensor
    mean: Tensor
    variance: Tensor

    @staticmethod
    def of(weight: Tensor, first: Tensor, second: Tensor) -> Moments:
        """The moments from Σ w, Σ w f and Σ w f²."""
        total = weight[:, None].clamp_min(1e-30)
        mean = first / total
        return Moments(weight, mean, (second / total - mean.square()).clamp_min(0))


class Design(Protocol):
    """The linear map θ[P] → logits[N, K], its adjoint, and the Hessian of Σ_n logsumexp η at probabilities p.

    `rows` views θ as [K, D], with the parameters of one class in a row; `flat` is its inverse.
    """

    @property
    def size(self) -> int: ...
    def single(self) -> Design: ...
    def __call__(self, theta: Tensor) -> Tensor: ...
    def adjoint(self, residual: Tensor) -> Tensor: ...
    def moments(self, p: Tensor) -> Moments: ...
    def rows(self, theta: Tensor) -> Tensor: ...
    def flat(self, rows: Tensor) -> Tensor: ...
    def hessian(self, p: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Diagonal:
    """η = v ∘ x + b, θ = (v, b): vector scaling."""

    x: Tensor

    @property
    def size(self) -> int:
        return self.x.numel()

    def single(self) -> Design:
        return Diagonal(self.x.float())

    def __call__(self, theta: Tensor) -> Tensor:
        v, b = theta.chunk(2)
        return torch.addcmul(b, self.x, v)

    def adjoint(self, residual: Tensor) -> Tensor:
        return torch.cat([(self.x * residual).sum(0), residual.sum(0)])

    def moments(self, p: Tensor) -> Moments:
        w = p * (1 - p)
        total, wx = w.sum(0), w * self.x
        first, second = torch.stack([wx.sum(0), total], 1), torch.stack([(wx * self.x).sum(0), total], 1)
        return Moments.of(total, first, second)

    def rows(self, theta: Tensor) -> Tensor:
        return theta.view(2, -1).T

    def flat(self, rows: Tensor) -> Tensor:
        return rows.T.reshape(-1)

    def hessian(self, p: Tensor) -> Tensor:
        g = torch.cat([p * self.x, p], 1)
        h = -(g.T @ g)
        k = p.shape[1]
        i = torch.arange(k)
        px = g[:, :k]
        h[i, i] += (px * self.x).sum(0)
        h[i + k, i + k] += p.sum(0)
        cross = px.sum(0)
        h[i, i + k] += cross
        h[i + k, i] += cross
        return h


@dataclass(frozen=True)
class Full:
    """η = W x + b, θ = (W row by row, b): matrix and Dirichlet scaling. `x` is [N, D]."""

    x: Tensor
    k: int

    @property
    def size(self) -> int:
        return len(self.x) * self.k

    def single(self) -> Design:
        return Full(self.x.float(), self.k)

    def _split(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        return theta[: -self.k].view(self.k, -1), theta[-self.k :]

    def __call__(self, theta: Tensor) -> Tensor:
        w, b = self._split(theta)
        return torch.addmm(b, self.x, w.T)

    def adjoint(self, residual: Tensor) -> Tensor:
        return torch.cat([(residual.T @ self.x).reshape(-1), residual.sum(0)])

    def moments(self, p: Tensor) -> Moments:
        w = p * (1 - p)
        total = w.sum(0)
        first, second = (torch.cat([w.T @ f, total[:, None]], 1) for f in (self.x, self.x.square()))
        return Moments.of(total, first, second)

    def rows(self, theta: Tensor) -> Tensor:
        w, b = self._split(theta)
        return torch.cat([w, b[:, None]], 1)

    def flat(self, rows: Tensor) -> Tensor:
        return torch.cat([rows[:, :-1].reshape(-1), rows[:, -1]])

    def hessian(self, p: Tensor) -> Tensor:
        k, d = self.k, self.x.shape[1]
        weighted = p[:, :, None] * self.x[:, None, :]
        g = torch.cat([weighted.flatten(1), p], 1)
        h = -(g.T @ g)
        each, last = torch.arange(k, device=p.device), k * d
        h[:last, :last].view(k, d, k, d)[each, :, each] += weighted.permute(1, 2, 0) @ self.x
        cross = p.T @ self.x
        h[:last, last:].view(k, d, k)[each, :, each] += cross
        h[last:, :last].view(k, k, d)[each, each] += cross
        h[last + each, last + each] += p.sum(0)
        return h


@dataclass(frozen=True)
class Shared:
    """η_nk = Σ_j θ_j φ_j(x_nk): one function of the score for all classes, θ_j its slope between knots j − 1 and j.

    φ_j(x) is the part of x in segment j, counted from the first knot; the outer segments have no outer end. A score in
    segment s crosses the full `width` of the segments before it and the `depth` of its own. So adjoint and Hessian need
    only sums by segment, and the N × K × J features are never stored.
    """

    x: Tensor
    knots: Tensor  # [J − 1]

    @property
    def size(self) -> int:
        return self.x.numel()

    def single(self) -> Design:
        return Shared(self.x.float(), self.knots.float())

    @cached_property
    def segment(self) -> Tensor:
        return torch.bucketize(self.x, self.knots)

    @cached_property
    def depth(self) -> Tensor:
        return self.x - self.knots[(self.segment - 1).clamp_min(0)]

    @cached_property
    def width(self) -> Tensor:
        """The width of each segment, [J]; 0 for the outer ones, which nothing crosses."""
        return torch.nn.functional.pad(torch.diff(self.knots), (1, 1))

    def __call__(self, theta: Tensor) -> Tensor:
        crossed = torch.cumsum(self.width * theta, 0)
        height = torch.nn.functional.pad(crossed[:-1], (1, 0))
        return torch.addcmul(height[self.segment], theta[self.segment], self.depth)

    def _sums(self, values: Tensor) -> Tensor:
        """The sum of the values in each segment."""
        return torch.bincount(self.segment.flatten(), values.flatten(), minlength=len(self.width)).to(values.dtype)

    def adjoint(self, residual: Tensor) -> Tensor:
        return self._sums(residual * self.depth) + self.width * _beyond(self._sums(residual))

    def moments(self, p: Tensor) -> Moments:
        h = self.hessian(p).diagonal()[None]
        return Moments(h.new_ones(1), torch.zeros_like(h), h)

    def rows(self, theta: Tensor) -> Tensor:
        return theta[None]

    def flat(self, rows: Tensor) -> Tensor:
        return rows[0]

    def hessian(self, p: Tensor) -> Tensor:
        """Σ_n [ Σ_k p φ φᵀ − (Σ_k p φ)(Σ_k p φ)ᵀ ]."""
        n, j = len(p), len(self.width)
        pd = p * self.depth
        by_row = self.segment + j * torch.arange(n, device=p.device)[:, None]
        rows = [torch.bincount(by_row.flatten(), v.flatten(), minlength=n * j).to(p.dtype).view(n, j) for v in (p, pd)]
        mean = rows[1] + self.width * _beyond(rows[0])
        whole, part = rows[0].sum(0), rows[1].sum(0)
        last = part + self.width * _beyond(whole)  # Σ p φ_j
        second = torch.triu(torch.outer(self.width, last), 1)
        second = second + second.T + torch.diag(self._sums(pd * self.depth) + self.width.square() * _beyond(whole))
        return second - mean.T @ mean


def _beyond(values: Tensor) -> Tensor:
    """For each j, the sum over s > j along the last axis."""
    return values.flip(-1).cumsum(-1).flip(-1) - values
