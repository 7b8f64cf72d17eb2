"""Carlini & Wagner's L2 attack (2017; AR A.4): the distance to another prediction, by Adam and a search over c.

    minimise ‖x(w) − x‖² + c·f(x(w)),   x(w) = low + (high − low)·(tanh w + 1)/2,   f = max(z_r − max_{k≠r} z_k + κ, 0)

The change of variable keeps x(w) inside the bounds. c grows tenfold until there is a success, then its interval is
halved: `search_steps` times in all, `iterations` of Adam each; steps without any success so far do not count, which
makes success certain where f has a gradient. The paper's settings are the defaults (A.4: 3, 500, 0.005).

Ours, none of which the paper fixes: each item's first c comes from the linear model of f at x (c = 2f/‖∇f‖², exact for
a linear network); the next search starts at the best point, as cleverhans does, with a new Adam; an item whose loss
has not fallen for a tenth of the iterations ends this search, as in the authors' code, but alone, not with its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.task import Seen, State, Task, spread
from calibrant.errors import InputError

INSIDE = 0.999999
"""Pixels at a bound are at this share of it in w, where tanh is still invertible (as in the authors' code)."""
BETA1, BETA2, TINY = 0.9, 0.999, 1e-8  # Adam's
LARGEST_C = 1e10
PROGRESS = 0.9999
"""A tenth of the iterations must lower the loss to this share, or the search ends."""


@dataclass(frozen=True, kw_only=True)
class CarliniWagner(Attack):
    """CW-L2: minimum L2 norm by Adam over tanh space and a binary search over c (Carlini & Wagner 2017)."""

    search_steps: int = 3
    iterations: int = 500
    lr: float = 0.005
    kappa: float = 0.0
    initial_c: float | None = None  # None: from the gradient at the input
    abort_early: bool = True
    adaptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.search_steps < 1 or self.iterations < 1 or self.lr <= 0 or self.kappa < 0:
            raise InputError(f"search_steps and iterations ≥ 1, lr > 0, kappa ≥ 0; got {self}")
        if self.initial_c is not None and self.initial_c <= 0:
            raise InputError(f"initial_c={self.initial_c} must be positive")

    @property
    def steps(self) -> int:
        return self.search_steps * self.iterations

    def objective(self, task: Task, logits: Tensor) -> Tensor:
        """−f."""
        return (task.margin(logits) - self.kappa).clamp_max(0.0)

    def begin(self, task: Task) -> State:
        w = to_tanh(task.origin, task.bounds)
        zero = torch.zeros_like(w[:, 0] if w.ndim == 2 else w.flatten(1)[:, 0])
        count, no = torch.zeros_like(task.reference), task.reference < 0
        return {
            "point": task.origin.clone(), "done": no, "w": w, "m": torch.zeros_like(w), "v": torch.zeros_like(w),
            "t": count, "search": count.clone(), "c": zero, "low": zero.clone(), "high": zero + torch.inf,
            "found": no.clone(), "ever": no.clone(), "recent": zero + torch.inf, "earlier": zero + torch.inf,
        }  # fmt: skip

    def step(self, task: Task, state: State, seen: Seen) -> State:
        f = (self.kappa - task.margin(seen.logits)).clamp_min(0.0)
        t = state["t"] + 1
        c = torch.where((state["search"] == 0) & (t == 1), self._first_c(f, seen.gradient), state["c"])
        adam = self._adam(task, state, seen, c, t)
        loss = seen.distance.square() + c * f
        found, ever = state["found"] | seen.success, state["ever"] | seen.success

        check = t % max(1, self.iterations // 10) == 0
        recent = torch.minimum(state["recent"], loss)
        stalled = check & ~(recent < PROGRESS * state["earlier"]) if self.abort_early else torch.zeros_like(check)
        earlier = torch.where(check, torch.minimum(recent, state["earlier"]), state["earlier"])
        ended = stalled | (t >= self.iterations)

        high = torch.where(ended & found, torch.minimum(c, state["high"]), state["high"])
        low = torch.where(ended & ~found, torch.maximum(c, state["low"]), state["low"])
        next_c = torch.where(high < torch.inf, (low + high) / 2, 10 * c)
        search = state["search"] + ended.long()
        done = ended & ((ever & (search >= self.search_steps)) | (next_c > LARGEST_C))

        anew = spread(ended, adam["w"])
        w = torch.where(anew, to_tanh(state["best"], task.bounds), adam["w"])
        return {
            "point": from_tanh(w, task.bounds), "done": done, "w": w,
            "m": adam["m"].masked_fill(anew, 0.0), "v": adam["v"].masked_fill(anew, 0.0),
            "t": t.masked_fill(ended, 0), "search": search,
            "c": torch.where(ended, next_c, c), "low": low, "high": high, "found": found & ~ended, "ever": ever,
            "recent": recent.masked_fill(check | ended, torch.inf), "earlier": earlier.masked_fill(ended, torch.inf),
        }  # fmt: skip

    def _first_c(self, f: Tensor, gradient: Tensor) -> Tensor:
        """At the optimum of a linear f, 2‖δ‖ = c‖∇f‖ and ‖δ‖ = f/‖∇f‖."""
        if self.initial_c is not None:
            return torch.full_like(f, self.initial_c)
        steepness = gradient.flatten(1).square().sum(1).clamp_min(torch.finfo(f.dtype).tiny)
        return (2 * f / steepness).to(f.dtype).clamp(1e-10, LARGEST_C / 10)

    def _adam(self, task: Task, state: State, seen: Seen, c: Tensor, t: Tensor) -> State:
        """One step of Adam on w; ∂x/∂w by hand, so that only f goes through the network."""
        delta = state["point"] - task.origin
        slope = (1 - torch.tanh(state["w"]).square()) * (task.bounds.range / 2)
        gradient = (2 * delta - spread(c, delta) * seen.gradient) * slope
        m = BETA1 * state["m"] + (1 - BETA1) * gradient
        v = BETA2 * state["v"] + (1 - BETA2) * gradient.square()
        count = t.to(delta.dtype)
        first, second = m / spread(1 - BETA1**count, m), v / spread(1 - BETA2**count, v)
        return {"w": state["w"] - self.lr * first / (second.sqrt() + TINY), "m": m, "v": v}


def to_tanh(pixel: Tensor, bounds: Bounds) -> Tensor:
    return torch.atanh(((pixel - bounds.low) * (2 / bounds.range) - 1) * INSIDE)


def from_tanh(w: Tensor, bounds: Bounds) -> Tensor:
    return bounds.low + bounds.range * (torch.tanh(w) + 1) / 2
