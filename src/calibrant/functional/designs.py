"""The linear operators θ → logits that `multinomial.py` fits: diagonal, full, one function for all classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Of each class's features under the weights w_n = p_nk(1 − p_nk): Σ w [K], their mean and variance [K, D].

    The Hessian's block of a class is Σ w · (covariance + mean meanᵀ); what a preconditioner keeps of it.
    """

    weight: Tensor
    mean: Tensor
    variance: Tensor

    @staticmethod
    def of(weight: Tensor, first: Tensor, second: Tensor) -> Moments:
        """From Σ w, Σ w f and Σ w f²."""
        total = weight[:, None].clamp_min(1e-30)
        mean = first / total
        return Moments(weight, mean, (second / total - mean.square()).clamp_min(0))


class Design(Protocol):
    """θ[P] → logits[N, K], its adjoint, and the Hessian of Σ_n logsumexp η at probabilities p.

    `rows` views θ as [K, D], a class's own parameters in a row, and `flat` undoes it.
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
        d = self.x.shape[1]
        g = torch.cat([(p[:, :, None] * self.x[:, None, :]).flatten(1), p], 1)
        h = -(g.T @ g)
        for c in range(self.k):
            rows = slice(c * d, (c + 1) * d)
            px = p[:, c, None] * self.x
            h[rows, rows] += px.T @ self.x
            cross = px.sum(0)
            last = self.k * d + c
            h[rows, last] += cross
            h[last, rows] += cross
            h[last, last] += p[:, c].sum()
        return h


@dataclass(frozen=True)
class Shared:
    """η_nk = Σ_j θ_j φ_j(x_nk): one function of the score for all classes, θ_j its slope between knots j and j + 1.

    φ_j(x) is the part of x that lies in segment j; the first and the last segment have no outer end. Features are
    made a chunk at a time, so that N × K × J numbers never exist together.
    """

    x: Tensor
    knots: Tensor  # [J − 1]
    chunk: int = 1 << 21

    @property
    def size(self) -> int:
        return self.x.numel()

    def single(self) -> Design:
        return Shared(self.x.float(), self.knots.float(), self.chunk)

    def features(self, x: Tensor) -> Tensor:
        cut = torch.cat([self.knots.new_tensor([-torch.inf]), self.knots, self.knots.new_tensor([torch.inf])])
        origin = torch.cat([self.knots[:1], self.knots])
        return torch.minimum(torch.maximum(x[..., None], cut[:-1]), cut[1:]) - origin

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        rows = max(1, self.chunk // (self.x.shape[1] * (len(self.knots) + 1)))
        for start in range(0, len(self.x), rows):
            at = slice(start, start + rows)
            yield at, self.features(self.x[at])

    def __call__(self, theta: Tensor) -> Tensor:
        return torch.cat([f @ theta for _, f in self._chunks()])

    def adjoint(self, residual: Tensor) -> Tensor:
        total = residual.new_zeros(len(self.knots) + 1)
        for at, f in self._chunks():
            total += f.flatten(0, 1).T @ residual[at].flatten()
        return total

    def moments(self, p: Tensor) -> Moments:
        h = self.hessian(p).diagonal()[None]
        return Moments(h.new_ones(1), torch.zeros_like(h), h)

    def rows(self, theta: Tensor) -> Tensor:
        return theta[None]

    def flat(self, rows: Tensor) -> Tensor:
        return rows[0]

    def hessian(self, p: Tensor) -> Tensor:
        j = len(self.knots) + 1
        total = p.new_zeros(j, j)
        for at, f in self._chunks():
            mean = torch.einsum("nkj,nk->nj", f, p[at])
            total += (f * p[at][..., None]).flatten(0, 1).T @ f.flatten(0, 1) - mean.T @ mean
        return total
