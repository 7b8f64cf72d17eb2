"""Carlini & Wagner's L2 attack (2017; AR A.4): the distance to another prediction, by Adam and a search over c.

    minimise ‖x(w) − x‖² + c·f(x(w)),   x(w) = middle + half·tanh(w)/0.4,   f = max(z_r − max_{k≠r} z_k + κ, 0)

c grows tenfold until there is a success, then its interval is halved. There are `search_steps` searches from x, each of
up to `iterations` steps of Adam. The defaults are the paper's settings (A.4: 3, 500, 0.005).

We differ from the authors' code in four ways.
- We divide by 0.4. With their 0.999999 a pixel at a bound hardly moves, and half of Fashion-MNIST's pixels are at one.
- The first c is three times the optimum 2f/‖∇f‖² of the linear model at x.
- Up to `UNCOUNTED` searches before the first success do not count.
- They stop a whole batch when its loss no longer falls. We halve the learning rate of the item whose loss no longer
  falls, and end its search when the rate is below 1/32 of the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.task import Seen, State, Task, spread
from calibrant.functional.settings import at_least, positive

INSIDE = 0.4
FARTHEST = math.atanh(INSIDE)
"""The |w| of a pixel at a bound."""
BETA1, BETA2, TINY = 0.9, 0.999, 1e-8
"""Adam's constants."""
UNCOUNTED = 9
STEEPER = 3.0
"""The first c, as a multiple of the linear model's optimum."""
PATIENCE, PROGRESS, LAST_RATE = 8, 0.99, 1 / 32
"""Every PATIENCE iterations, the rate is halved unless the lowest loss fell below PROGRESS times its earlier value."""


@dataclass(frozen=True, kw_only=True)
class CarliniWagner(Attack):
    """CW-L2: minimum L2 norm by Adam over tanh space and a binary search over c (Carlini & Wagner 2017)."""

    search_steps: int = 3
    iterations: int = 500
    lr: float = 0.005
    kappa: float = 0.0  # type: ignore[misc]  # a setting here, a constant elsewhere
    initial_c: float | None = None  # None: computed from the gradient at the input

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, search_steps=1, iterations=1, kappa=0)
        positive(self, "lr", "initial_c")

    @property
    def steps(self) -> int:
        return (self.search_steps + UNCOUNTED) * self.iterations

    def objective(self, task: Task, state: State, logits: Tensor) -> Tensor:
        """Return −f, which is zero beyond the boundary. A tie still has a gradient."""
        margin = task.margin(logits)
        return torch.where(margin <= 0, margin, 0.0)

    def begin(self, task: Task) -> State:
        w = to_tanh(task.origin, task.bounds)
        zero = torch.zeros_like(task.clearance, dtype=w.dtype)
        count = torch.zeros_like(task.reference)
        return {
            "w": w, "start": w.clone(),
            "m": torch.zeros_like(w), "v": torch.zeros_like(w), "iteration": count, "search": count.clone(),
            "c": zero, "low": zero.clone(), "high": zero + torch.inf, "found": count > 0,
            "rate": zero + 1, "lowest": zero + torch.inf, "checked": zero + torch.inf,
        }  # fmt: skip

    def step(self, task: Task, state: State, seen: Seen) -> State:
        f = -self.objective(task, state, seen.logits)
        iteration = state["iteration"] + 1
        c = torch.where(state["t"] == 0, self._first_c(f, seen.gradient), state["c"])
        found = state["found"] | seen.success
        lowest = torch.minimum(state["lowest"], seen.distance.square() + c * f)
        check = iteration % PATIENCE == 0
        stalled = check & ~(lowest < PROGRESS * state["checked"])
        rate = torch.where(stalled, state["rate"] / 2, state["rate"])
        ended = (rate < LAST_RATE) | (iteration >= self.iterations)

        high = torch.where(ended & found, torch.minimum(c, state["high"]), state["high"])
        low = torch.where(ended & ~found, torch.maximum(c, state["low"]), state["low"])
        next_c = torch.where(high < torch.inf, (low + high) / 2, 10 * c)
        search = state["search"] + ended.long()
        adam = self._adam(task, state, seen, c, iteration)
        anew = spread(ended, adam["w"])
        # without a success so far, the next search continues from here with its larger c
        w = torch.where(spread(ended & (high < torch.inf), anew), state["start"], adam["w"])
        return {
            "point": from_tanh(w, task.bounds), "w": w,
            "m": adam["m"].masked_fill(anew, 0.0), "v": adam["v"].masked_fill(anew, 0.0),
            "iteration": iteration.masked_fill(ended, 0), "search": search,
            "c": torch.where(ended, next_c, c), "low": low, "high": high, "found": found & ~ended,
            "rate": rate.masked_fill(ended, 1.0), "lowest": lowest.masked_fill(ended, torch.inf),
            "checked": torch.where(check, lowest, state["checked"]).masked_fill(ended, torch.inf),
            "done": ended & (search >= self.search_steps + torch.where(high < torch.inf, 0, UNCOUNTED)),
        }  # fmt: skip

    def _first_c(self, f: Tensor, gradient: Tensor) -> Tensor:
        """Return the first c of each item: at the optimum of a linear f, 2‖δ‖ = c‖∇f‖ and ‖δ‖ = f/‖∇f‖."""
        if self.initial_c is not None:
            return torch.full_like(f, self.initial_c)
        steepness = gradient.flatten(1).square().sum(1).clamp_min(torch.finfo(gradient.dtype).tiny)
        return (STEEPER * 2 * f / steepness).to(gradient.dtype).clamp(1e-10, 1e10)

    def _adam(self, task: Task, state: State, seen: Seen, c: Tensor, iteration: Tensor) -> State:
        """Take one step of Adam on w. ∂x/∂w is written out, so that only f is differentiated by autograd."""
        delta = state["point"] - task.origin
        slope = (1 - torch.tanh(state["w"]).square()) * (task.bounds.range / (2 * INSIDE))
        gradient = (2 * delta - spread(c, delta) * seen.gradient) * slope
        m = torch.lerp(state["m"], gradient, 1 - BETA1)
        v = torch.addcmul(BETA2 * state["v"], gradient, gradient, value=1 - BETA2)
        count = iteration.to(delta.dtype)
        size = self.lr * state["rate"] / (1 - BETA1**count)
        w = state["w"] - spread(size, m) * m / ((v / spread(1 - BETA2**count, v)).sqrt() + TINY)
        return {"w": w.clamp(-FARTHEST, FARTHEST), "m": m, "v": v}


def to_tanh(pixel: Tensor, bounds: Bounds) -> Tensor:
    return torch.atanh(((pixel - bounds.low) * (2 / bounds.range) - 1) * INSIDE)


def from_tanh(w: Tensor, bounds: Bounds) -> Tensor:
    return bounds.low + bounds.range * (torch.tanh(w) / INSIDE + 1) / 2
