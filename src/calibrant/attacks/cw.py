"""Carlini & Wagner's L2 attack (2017; AR A.4): the distance to another prediction, by Adam and a search over c.

    minimise ‖x(w) − x‖² + c·f(x(w)),   x(w) = middle + half·tanh(w)/0.4,   f = max(z_r − max_{k≠r} z_k + κ, 0)

w stays where x(w) is inside the bounds. c grows tenfold until there is a success, then its interval is halved:
`search_steps` times in all, up to `iterations` of Adam each; searches do not count until there is a success, which
makes it certain wherever f has a gradient. The paper's settings are the defaults (A.4: 3, 500, 0.005).

Ours, none of which the paper fixes. The divisor 0.4: the authors have 0.999999, where a pixel at a bound hardly moves,
and half of Fashion-MNIST's are. The first search climbs the log-odds instead of −f, the second −f, both from x: f sees
one class at a time and may settle at a boundary that is not the nearest. Each of the two has a c from the linear model
at x (whose optimum is at 2f/‖∇f‖²; three times that, as f is no line); later ones start at the best point, as
cleverhans' do. And where the authors stop a batch whose loss has not fallen for a tenth of the iterations, each item
has its own learning rate, which halves when its own loss stands still; the search ends below 1/32.

Divisor and end were chosen on 160 images of Fashion-MNIST's test half that no figure is measured on, two networks, and
48 of CIFAR-10 (docs/attacks.md): with 0.8 and 1/16 distances were 1.4 and 1.0 % longer on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.settings import at_least, positive
from calibrant.attacks.task import Seen, State, Task, spread

INSIDE = 0.4
FARTHEST = math.atanh(INSIDE)  # |w| of a pixel at a bound
BETA1, BETA2, TINY = 0.9, 0.999, 1e-8  # Adam's
LARGEST_C = 1e10
IN_VAIN = 12
"""Searches without a success, with c at its largest at last, after which there is none to be expected: where the
gradient at x is next to nothing, c starts large, and what is missing is the way, not c."""
STEEPER = 3.0
"""The first c, as a multiple of the linear model's."""
PATIENCE, PROGRESS, LAST_RATE = 15, 0.99, 1 / 32
"""After PATIENCE iterations the loss must be under this share of what it was, or the rate is halved."""


@dataclass(frozen=True, kw_only=True)
class CarliniWagner(Attack):
    """CW-L2: minimum L2 norm by Adam over tanh space and a binary search over c (Carlini & Wagner 2017)."""

    search_steps: int = 3
    iterations: int = 500
    lr: float = 0.005
    kappa: float = 0.0
    initial_c: float | None = None  # None: from the gradient at the input
    abort_early: bool = True
    looks: ClassVar[int] = 9
    period: ClassVar[int | None] = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, search_steps=1, iterations=1, kappa=0)
        positive(self, "lr", *(["initial_c"] if self.initial_c is not None else []))

    @property
    def steps(self) -> int:
        return self.search_steps * self.iterations

    @property
    def confident(self) -> float:
        return self.kappa

    def objective(self, task: Task, state: State, logits: Tensor) -> Tensor:
        """−f, or the log-odds in the first search, both less κ, beyond which there is nothing to gain. A tie is no
        success yet."""
        margin = task.margin(logits)
        climbed = torch.where(state["search"] == 0, task.odds(logits), margin)
        return torch.where(margin <= 0, climbed, 0.0)

    def begin(self, task: Task) -> State:
        w = to_tanh(task.origin, task.bounds)
        zero = torch.zeros_like(task.reference, dtype=w.dtype)
        count, no = torch.zeros_like(task.reference), task.reference < 0
        return {
            "point": task.origin.clone(), "done": no, "w": w, "w_origin": w.clone(), "w_best": w.clone(),
            "m": torch.zeros_like(w), "v": torch.zeros_like(w),
            "t": count, "search": count.clone(), "c": zero, "low": zero.clone(), "high": zero + torch.inf,
            "found": no.clone(), "ever": no.clone(), "rate": zero + 1, "recent": zero + torch.inf,
            "earlier": zero + torch.inf,
        }  # fmt: skip

    def step(self, task: Task, state: State, seen: Seen) -> State:
        f = (-self.objective(task, state, seen.logits)).clamp_min(0.0)
        t = state["t"] + 1
        c = torch.where((state["search"] < 2) & (t == 1), self._first_c(f, seen.gradient), state["c"])
        found, ever = state["found"] | seen.success, state["ever"] | seen.success
        pace = self._pace(state, seen.distance.square() + c * f, t)
        ended = (pace["rate"] < LAST_RATE) | (t >= self.iterations)

        high = torch.where(ended & found, torch.minimum(c, state["high"]), state["high"])
        low = torch.where(ended & ~found, torch.maximum(c, state["low"]), state["low"])
        next_c = torch.where(high < torch.inf, (low + high) / 2, (10 * c).clamp_max(LARGEST_C))
        search = state["search"] + ended.long()
        hopeless = ((search >= IN_VAIN) & (next_c >= LARGEST_C)) | next_c.isnan()
        done = ended & ((ever & (search >= self.search_steps)) | hopeless)

        adam = self._adam(task, state, seen, c, t)
        anew = spread(ended, adam["w"])
        nearer = spread(seen.success & (seen.distance < state["nearest"]), anew)
        w_best = torch.where(nearer, state["w"], state["w_best"])
        start = torch.where(spread(state["search"] == 0, anew), state["w_origin"], w_best)
        # without a success so far, the next search goes on from here with its larger c
        w = torch.where(spread(ended & ever, anew), start, adam["w"])
        return {
            "point": from_tanh(w, task.bounds), "done": done, "w": w, "w_best": w_best,
            "m": adam["m"].masked_fill(anew, 0.0), "v": adam["v"].masked_fill(anew, 0.0),
            "t": t.masked_fill(ended, 0), "search": search, "c": torch.where(ended, next_c, c),
            "low": low, "high": high, "found": found & ~ended, "ever": ever,
            "rate": pace["rate"].masked_fill(ended, 1.0), "recent": pace["recent"].masked_fill(ended, torch.inf),
            "earlier": pace["earlier"].masked_fill(ended, torch.inf),
        }  # fmt: skip

    def _first_c(self, f: Tensor, gradient: Tensor) -> Tensor:
        """At the optimum of a linear f, 2‖δ‖ = c‖∇f‖ and ‖δ‖ = f/‖∇f‖."""
        if self.initial_c is not None:
            return torch.full_like(f, self.initial_c)
        steepness = gradient.flatten(1).square().sum(1).clamp_min(torch.finfo(gradient.dtype).tiny)
        return (STEEPER * 2 * f / steepness).to(gradient.dtype).clamp(1e-10, LARGEST_C / 10)

    def _pace(self, state: State, loss: Tensor, t: Tensor) -> State:
        """The item's own learning rate: halved when the lowest loss of PATIENCE iterations is no progress."""
        recent = torch.minimum(state["recent"], loss)
        check = t % PATIENCE == 0 if self.abort_early else torch.zeros_like(t, dtype=torch.bool)
        stalled = check & ~(recent < PROGRESS * state["earlier"])
        return {
            "rate": torch.where(stalled, state["rate"] / 2, state["rate"]),
            "earlier": torch.where(check, torch.minimum(recent, state["earlier"]), state["earlier"]),
            "recent": recent.masked_fill(check, torch.inf),
        }

    def _adam(self, task: Task, state: State, seen: Seen, c: Tensor, t: Tensor) -> State:
        """One step of Adam on w; ∂x/∂w by hand, so that only f goes through the network."""
        delta = state["point"] - task.origin
        # tanh w is known from the point: a transcendental function less
        tanh = (state["point"] - (task.bounds.low + task.bounds.high) / 2) * (2 * INSIDE / task.bounds.range)
        slope = (1 - tanh.square()) * (task.bounds.range / (2 * INSIDE))
        gradient = (2 * delta - spread(c, delta) * seen.gradient) * slope
        m = torch.lerp(state["m"], gradient, 1 - BETA1)
        v = torch.addcmul(BETA2 * state["v"], gradient, gradient, value=1 - BETA2)
        count = t.to(delta.dtype)
        size = self.lr * state["rate"] / (1 - BETA1**count)
        w = state["w"] - spread(size, m) * m / ((v / spread(1 - BETA2**count, v)).sqrt() + TINY)
        return {"w": w.clamp(-FARTHEST, FARTHEST), "m": m, "v": v}


def to_tanh(pixel: Tensor, bounds: Bounds) -> Tensor:
    return torch.atanh(((pixel - bounds.low) * (2 / bounds.range) - 1) * INSIDE)


def from_tanh(w: Tensor, bounds: Bounds) -> Tensor:
    return bounds.low + bounds.range * (torch.tanh(w) / INSIDE + 1) / 2
