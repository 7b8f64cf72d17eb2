"""Vector scaling (Guo 2017): z'_k = w_k z_k + b_k, the least NLL, convex in (w, b).

In units of the temperature solution, z̃ = z/T* and w = (1 + u)/T*, it minimises

    mean_n [log Σ_k exp((1 + u_k) z̃_k + b_k) − (1 + u_y) z̃_y − b_y] + ridge/(2N) · (‖u‖² + ‖b‖²):

the ridge is far below noise, but it keeps an optimum where the classes are separable or one never occurs, and
fixes the constant that can be added to every b. Where temperature itself has no optimum (separable), T* = 1 and
the pull is towards the identity.
Newton's method with the exact Hessian up to 256 classes, L-BFGS beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.temperature import least_nll
from calibrant.types import Predictions

NEWTON_CLASSES = 256


@dataclass(frozen=True, eq=False)
class VectorMap(FittedMap):
    """w ∘ z + b; an impossible class stays impossible whatever the sign of its weight."""

    weight: Tensor
    bias: Tensor
    method: ClassVar[str] = "vector"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int:
        return len(self.weight)

    def transform(self, logits: Tensor) -> Tensor:
        out = logits * self.weight.to(logits.device) + self.bias.to(logits.device)
        return torch.where(torch.isneginf(logits), logits, out)


@dataclass(frozen=True)
class Vector(Calibrator):
    """Vector scaling: a weight and a bias for each class (Guo 2017)."""

    ridge: float = 1e-4
    name: ClassVar[str] = "vector"
    map: ClassVar[type[FittedMap]] = VectorMap
    cost: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise InputError(f"ridge={self.ridge}; it must be positive, or separable data have no optimum")

    def solve(self, p: Predictions) -> FittedMap:
        assert p.logits is not None
        T, certificate = least_nll(p.logits, p.labels)
        if certificate["bound"] is not None:
            T = 1.0
        z = p.logits.double() / T
        possible = torch.isfinite(z.gather(1, p.labels.to(z.device)[:, None])[:, 0])
        problem = Problem(z[possible], p.labels.to(z.device)[possible], self.ridge)
        u, b, how = problem.newton() if z.shape[1] <= NEWTON_CLASSES else problem.lbfgs()
        return VectorMap((1 + u).cpu() / T, b.cpu(), record=certified({"ridge": self.ridge, "anchor_T": T, **how}))


class Problem:
    """Objective, gradient and Hessian in θ = (u, b)."""

    def __init__(self, z: Tensor, y: Tensor, ridge: float) -> None:
        gone = torch.isneginf(z)
        self.gone = gone if bool(gone.any()) else None
        z = z.masked_fill(gone, 0.0)
        self.z, self.y, self.n, self.k = z, y, len(z), z.shape[1]
        self.ridge = ridge / self.n
        row = torch.arange(self.n, device=z.device)
        self.row, self.z_label = row, z[row, y]

    def value(self, theta: Tensor) -> tuple[float, Tensor, Tensor]:
        """(objective, gradient, probabilities)."""
        u, b = theta[: self.k], theta[self.k :]
        out = torch.addcmul(b, self.z, 1 + u)
        if self.gone is not None:
            out.masked_fill_(self.gone, -torch.inf)
        label = out[self.row, self.y]
        log_z = torch.logsumexp(out, 1)
        p = torch.exp(out.sub_(log_z[:, None]))
        loss = float((log_z - label).mean() + self.ridge / 2 * theta.square().sum())
        residual = p.clone()
        residual[self.row, self.y] -= 1
        gradient = torch.cat([(residual * self.z).mean(0), residual.mean(0)]) + self.ridge * theta
        return loss, gradient, p

    def hessian(self, p: Tensor) -> Tensor:
        pz = p * self.z
        both = torch.cat([pz, p], 1)
        h = -(both.T @ both) / self.n
        i = torch.arange(self.k, device=p.device)
        cross = pz.mean(0)
        h[i, i] += (pz * self.z).mean(0)
        h[i, i + self.k] += cross
        h[i + self.k, i] += cross
        h[i + self.k, i + self.k] += p.mean(0)
        return h + self.ridge * torch.eye(2 * self.k, dtype=h.dtype, device=h.device)

    def newton(self, limit: int = 100) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Damped Newton: half of λ² = gᵀH⁻¹g is what the objective can still lose, so it is the certificate."""
        theta = torch.zeros(2 * self.k, dtype=torch.float64, device=self.z.device)
        loss, gradient, p = self.value(theta)
        left, count = float("inf"), 0
        while count < limit:
            count += 1
            h = self.hessian(p)
            factor, wrong = torch.linalg.cholesky_ex(h)
            if int(wrong):  # rounding ate the ridge: the smallest lift that keeps it positive
                lift = 1e-12 * float(h.diagonal().amax())
                factor = torch.linalg.cholesky(h + lift * torch.eye(len(h), dtype=h.dtype, device=h.device))
            step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
            left = float(gradient @ step) / 2
            if left < 1e-12:
                break
            scale = 1.0
            while True:
                trial = theta - scale * step
                new = self.value(trial)
                if new[0] <= loss - 1e-4 * scale * 2 * left or scale < 1e-10:
                    break
                scale /= 2
            if scale < 1e-10:
                break
            theta, (loss, gradient, p) = trial, new
        u, b = theta[: self.k], theta[self.k :]
        return (
            u,
            b,
            {"solver": "newton", "iterations": count, "left_to_gain": left, "gradient": float(gradient.abs().max())},
        )

    def lbfgs(self) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """scipy's L-BFGS in coordinates scaled by the Hessian's diagonal at the start."""
        from scipy.optimize import minimize

        zero = torch.zeros(2 * self.k, dtype=torch.float64, device=self.z.device)
        _, _, p = self.value(zero)
        curvature = torch.cat([(p * (1 - p) * self.z.square()).mean(0), (p * (1 - p)).mean(0)])
        unit = 1 / (curvature + 1e-2 * curvature.mean() + self.ridge).sqrt()

        def objective(x: Any) -> tuple[float, Any]:
            loss, gradient, _ = self.value(torch.from_numpy(x).to(unit) * unit)
            return loss, (gradient * unit).cpu().numpy()

        found = minimize(
            objective,
            zero.cpu().numpy(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-8, "maxcor": 20},
        )
        theta = torch.from_numpy(found.x).to(unit) * unit
        u, b = theta[: self.k], theta[self.k :]
        return u, b, {"solver": "l-bfgs", "iterations": int(found.nit), "gradient": float(abs(found.jac).max())}
