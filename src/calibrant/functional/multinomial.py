"""Multinomial logistic fits by Newton's method in float64, with a certificate. Every linear map is fitted by them.

With logits η = L(θ), linear in θ, minimise the convex

    f(θ) = 1/N Σ_n [ logsumexp_k η_nk − η_n,y(n) ] + Σ_i r_i (θ_i − c_i)²

A `Design` is the linear operator L with its adjoint, so the solver does not know which map it fits. With few parameters
it uses the exact Hessian and Cholesky. With many it uses conjugate gradients on Hessian products
L*(p∘(Lv − ⟨p, Lv⟩)), preconditioned by the Hessian's diagonal and stopped as soon as they help no more (truncated
Newton). The certificate is the bound Σ_i g_i²/(4 r_i) on f(θ) − min f if every parameter has a ridge, else an estimate
of it, the Newton decrement λ²/2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calibrant.functional.designs import Design

DENSE = 64
"""Up to this many parameters, the whole Hessian is always cheaper than products with it."""
LIGHT = 1 << 24
"""Up to this N × parameters², the whole Hessian is cheaper too, because small products take longer to start than to
compute."""
AFFORDABLE = 512
"""Up to this many parameters, the whole Hessian is used once conjugate gradients need more than `PATIENCE` products."""
PATIENCE = 20
SMALL = 1 << 16
"""Up to this N × K, float64 alone is fast enough."""


@dataclass(frozen=True)
class Solution:
    """The minimiser found. `decrement` estimates value − minimum; `gradient` is over the free parameters."""

    theta: Tensor
    value: float
    gradient: float
    decrement: float
    iterations: int

    def certificate(self) -> dict[str, Any]:
        return {
            "objective": self.value,
            "gradient": self.gradient,
            "decrement": self.decrement,
            "iterations": self.iterations,
        }


def minimise(
    design: Design,
    labels: Tensor,
    ridge: Tensor,
    centre: Tensor,
    *,
    start: Tensor | None = None,
    lower: Tensor | None = None,
    tolerance: float = 1e-9,
    limit: int = 100,
) -> Solution:
    """The minimiser of f, found from `start` (default: `centre`); `lower` bounds θ from below.

    Large problems are first solved in float32, so that float64 starts close to the solution. The objective and the
    gradient in float64 decide when the solution is reached.
    """
    ridge, centre = ridge.to(labels.device), centre.to(labels.device)
    lower = None if lower is None else lower.to(labels.device)
    theta = centre if start is None else start.to(labels.device)
    problem = _Problem(design, labels[:, None], ridge, centre, lower)
    spent = 0
    if design.size > SMALL:
        single = problem.single()
        rough = _newton(single, theta.float(), single, 1e-7, limit)
        if bool(torch.isfinite(rough.theta).all()):  # saturated features can overflow float32
            theta, spent = rough.theta.double(), rough.iterations
            if lower is not None and single.lower is not None:  # a bound rounded to float32 is not the bound
                theta = torch.where(rough.theta <= single.lower, lower, torch.maximum(theta, lower))
        found = _newton(problem, theta, single, tolerance, limit)
    else:
        found = _newton(problem, theta, problem, tolerance, limit)
    return replace(found, iterations=found.iterations + spent)


def effective_degrees(design: Design, theta: Tensor, ridge: Tensor) -> float | None:
    """tr[(H + 2R)⁻¹ H] at θ: how many parameters the ridge leaves free. None where the Hessian is too expensive."""
    if len(theta) > 2 * DENSE:
        return None
    p = torch.softmax(design(theta), 1)
    h = design.hessian(p) / len(p)
    return float(torch.linalg.solve(h + torch.diag(2 * ridge.to(h.device)), h).diagonal().sum())


@dataclass(frozen=True)
class _Problem:
    """f in one precision."""

    design: Design
    pick: Tensor  # labels [N, 1]
    ridge: Tensor
    centre: Tensor
    lower: Tensor | None

    def single(self) -> _Problem:
        lower = None if self.lower is None else self.lower.float()
        return _Problem(self.design.single(), self.pick, self.ridge.float(), self.centre.float(), lower)

    def at(self, theta: Tensor) -> tuple[float, Tensor]:
        """(f, probabilities) at θ, in two passes over N × K."""
        eta = self.design(theta)
        eta -= eta.amax(1, keepdim=True)
        label = eta.gather(1, self.pick)[:, 0].double()
        e = eta.exp_()
        total = e.sum(1)
        nll = (torch.log(total.double()) - label).mean()
        penalty = (self.ridge * (theta - self.centre).square()).sum()
        return float(nll + penalty), e.div_(total[:, None])

    def gradient(self, theta: Tensor, p: Tensor) -> Tensor:
        residual = p.scatter_add(1, self.pick, torch.full_like(self.pick, -1, dtype=p.dtype))
        return self.design.adjoint(residual) / len(p) + 2 * self.ridge * (theta - self.centre)


def _newton(problem: _Problem, theta: Tensor, curvature: _Problem, tolerance: float, limit: int) -> Solution:
    """Newton's method. `curvature` is the same problem in the precision in which steps are computed."""
    lower, iteration = problem.lower, 0
    dense = len(theta) <= DENSE or lower is not None or len(problem.pick) * len(theta) ** 2 <= LIGHT
    value, p = problem.at(theta)
    while True:
        g = problem.gradient(theta, p)
        free = torch.ones_like(theta, dtype=torch.bool) if lower is None else (theta > lower) | (g < 0)
        g = torch.where(free, g, 0.0)
        # with a ridge on everything f is strongly convex, so f − min f ≤ Σ g²/(4r), without the Hessian
        decrement = float((g.square() / (4 * problem.ridge)).nan_to_num(nan=0.0).sum())
        if decrement <= tolerance * max(value, 1e-3):
            break
        dtype, step = curvature.ridge.dtype, None
        if not dense:
            patience = PATIENCE if len(theta) <= AFFORDABLE else 5 * PATIENCE
            step, converged = _conjugate_step(curvature, p.to(dtype), g.to(dtype), patience)
            dense = not converged and len(theta) <= AFFORDABLE  # ill-conditioned, as with a weak ridge
        if dense or step is None:
            h = curvature.design.hessian(p.to(dtype)) / len(p) + torch.diag(2 * curvature.ridge)
            step = _dense_step(h.to(g.dtype), g, free)
            while lower is not None and bool((stuck := free & (theta <= lower) & (step < 0)).any()):
                # the gradient points up from the bound, but the joint step goes below it: held until the next step
                free = free & ~stuck
                g = torch.where(free, g, 0.0)
                step = _dense_step(h.to(g.dtype), g, free)
        step = step.to(g.dtype)
        decrement = float(-(g @ step)) / 2
        if not decrement > tolerance * max(value, 1e-3) or iteration == limit:
            break
        iteration += 1
        scale = 1.0
        while True:
            trial = theta + scale * step
            if lower is not None:
                trial = torch.maximum(trial, lower)
            new, p_new = problem.at(trial)
            if new <= value + 1e-4 * float(g @ (trial - theta)) or scale < 1e-8:
                break
            scale /= 2
        if not new < value:  # no step reduces it any more, because of rounding
            break
        theta, value, p = trial, new, p_new
    return Solution(theta, value, float(g.abs().max()), decrement, iteration)


def _dense_step(h: Tensor, g: Tensor, free: Tensor) -> Tensor:
    if not bool(free.all()):
        h = torch.where(free[:, None] & free[None, :], h, 0.0) + torch.diag((~free).to(h.dtype))
    # without a ridge, adding a constant to all logits changes nothing, so this direction needs a positive curvature
    jitter = torch.finfo(h.dtype).eps * float(h.diagonal().mean())
    while True:
        factor, info = torch.linalg.cholesky_ex(h + jitter * torch.eye(len(h), dtype=h.dtype, device=h.device))
        if int(info) == 0:
            return torch.cholesky_solve(-g[:, None], factor)[:, 0]
        jitter = max(jitter, 1e-30) * 100


def _conjugate_step(problem: _Problem, p: Tensor, g: Tensor, limit: int) -> tuple[Tensor, bool]:
    """(step, converged) with (H + 2r) step ≈ −g, to a residual that falls with the gradient (superlinear)."""
    design, twice_ridge, n = problem.design, 2 * problem.ridge, len(p)
    precondition = _preconditioner(problem, p)
    step, r = torch.zeros_like(g), -g
    z = precondition(r)
    d, rz = z, float(r @ z)
    goal = min(0.1, rz**0.25) ** 2 * rz
    for _ in range(limit):
        if rz <= goal or rz == 0.0:
            return step, True
        pu = p * design(d)
        hd = design.adjoint(torch.addcmul(pu, p, pu.sum(1, keepdim=True), value=-1)).div_(n).addcmul_(twice_ridge, d)
        curvature = float(d @ hd)
        if not curvature > 0:
            return step, True
        alpha = rz / curvature
        step.add_(d, alpha=alpha)
        r.sub_(hd, alpha=alpha)
        z = precondition(r)
        new = float(r @ z)
        d, rz = z.add_(d, alpha=new / rz), new
    return step, False


def _preconditioner(problem: _Problem, p: Tensor) -> Callable[[Tensor], Tensor]:
    """The inverse of ridge + Σw (diag(variance) + mean meanᵀ) of each class, by Sherman and Morrison.

    Log-probabilities are all far below zero, so it is their mean that makes the problem ill-conditioned.
    """
    design, n = problem.design, len(p)
    moments = design.moments(p)
    weight = moments.weight[:, None] / n
    diagonal = design.rows(2 * problem.ridge) + weight * moments.variance
    inverse = 1 / diagonal.clamp_min(1e-12 * float(diagonal.max()))
    scaled = moments.mean * inverse
    gain = weight / (1 + weight * (moments.mean * scaled).sum(1, keepdim=True))

    def apply(r: Tensor) -> Tensor:
        rows = design.rows(r)
        along = (scaled * rows).sum(1, keepdim=True)
        return design.flat(torch.addcmul(rows * inverse, scaled, gain * along, value=-1))

    return apply
