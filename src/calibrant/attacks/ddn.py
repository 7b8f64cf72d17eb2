"""DDN (Rony 2019): a minimum-norm attack that decouples direction and norm; the cheap ruler of CW's distance.

    δ ← δ + α_t · g/‖g‖,   ε ← (1 − γ_t)·ε after a success, (1 + γ_t)·ε otherwise,   δ ← ε · δ/‖δ‖,   clip

g is the gradient of −log p_r, and here of the margin in the second half. The paper starts every item at ε = 1 pixel,
with α from 1 to 0.01 by a cosine, γ = 0.05 and 100 steps or more: far too long where distances are a tenth of it. Here
the scale is the item's own, so that few steps are enough: ε starts where the linear model of the log-odds reaches
zero, α is in units of ε, γ falls by the same cosine, ε grows by half until the first success, and the end is searched
on the way to the best point (`boundary`). Twice the α brings most items of a CNN and of a ResNet-20 a little nearer in
as many steps, but leaves a few much farther, which then rank too high.

An item without a success after all iterations had a linear model that said nothing of how far it is: a network that
gives one class to nearly all inputs is flat where they are, and far steps land where its gradient points nowhere. It
starts again at its origin and walks up the gradient in strides of a fixed length, shorter in the second walk; at the
first success the iterations begin anew, with α no longer than the stride.

What is lost even so stands before a ridge: the log-odds rise as all other classes do, until they are alike and none of
them leads, and the margin's gradient turns at every stride. CW's Adam averages over the turns; it is asked last, of
these items alone, and theirs is its distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.cw import CarliniWagner
from calibrant.attacks.settings import at_least, positive
from calibrant.attacks.task import Seen, State, Task, direction, norms, spread
from calibrant.errors import InputError

GROWTH = 1.5
WALKS, STRIDES = 2, 80
"""How often an item without a success walks, and how far."""
STRIDE, SHORTER = 1 / 256, 4.0
"""The first walk's stride as a share of the box's diagonal, and its divisor for the next."""
RESCUE = 100
"""Iterations of CW for what the walks have lost."""
FINEST_ALPHA, FINEST_GAMMA = 0.01, 0.02
SHORTEST, LONGEST = 1e-4, 0.25
"""Limits of the first ε: of the bounds' range, and of the diagonal of the box."""


@dataclass(frozen=True, kw_only=True)
class DDN(Attack):
    """Minimum L2 norm by decoupled direction and norm: the cheap ruler (Rony 2019)."""

    iterations: int = 8
    gamma: float = 0.3
    alpha: float = 1.0  # in units of ε
    looks: ClassVar[int] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, iterations=1, gamma=FINEST_GAMMA)
        positive(self, "alpha")
        if self.gamma >= 1:
            raise InputError(f"gamma={self.gamma} must be below 1")

    @property
    def steps(self) -> int:
        return self.iterations

    def rescue(self) -> Attack | None:
        return CarliniWagner(bounds=self.bounds, batch=self.batch, engine=self.engine, iterations=RESCUE)

    def objective(self, task: Task, state: State, logits: Tensor) -> Tensor:
        """The log-odds, which all other classes enter, then the margin to the nearest, whose normal δ ends along."""
        early = (2 * state["t"] < self.iterations) | ((state["walk"] > 0) & (state["nearest"] == torch.inf))
        return torch.where(early, task.odds(logits), task.margin(logits))

    def begin(self, task: Task) -> State:
        zero = torch.zeros_like(task.reference, dtype=task.origin.dtype)
        count = torch.zeros_like(task.reference)
        start = {"point": task.origin.clone(), "done": task.reference < 0}
        return {**start, "t": count, "walk": count.clone(), "epsilon": zero}

    def step(self, task: Task, state: State, seen: Seen) -> State:
        before, walk = state["nearest"] < torch.inf, state["walk"]
        ever = seen.success | before
        arrived = (walk > 0) & seen.success & ~before
        t = torch.where(arrived, 1, state["t"])
        epsilon = self._epsilon(task, t, torch.where(arrived, seen.distance, state["epsilon"]), seen, ever)
        point, towards = state["point"], direction(seen.gradient)
        stride = STRIDE * _diagonal(task) / SHORTER ** (walk - 1).to(point.dtype)
        walked = point + spread(stride, point) * towards
        alpha = self.alpha * epsilon * (FINEST_ALPHA + (1 - FINEST_ALPHA) * self._wave(t, point.dtype))
        alpha = torch.where(walk > 0, torch.minimum(alpha, stride), alpha)
        moved = direction(point - task.origin + spread(alpha, point) * towards)
        turned = task.origin + spread(epsilon, point) * moved
        walks = (walk > 0) & ~ever
        point = torch.where(spread(walks, point), walked, turned)
        over = t + 1 >= torch.where(walks, STRIDES, self.iterations)
        lost = over & ~ever
        return {
            "point": torch.where(spread(lost, point), task.origin, point),
            "epsilon": epsilon,
            "t": (t + 1).masked_fill(lost, 0),
            "walk": walk + lost.long(),
            "done": over & (ever | (walk >= WALKS)),
        }

    def _epsilon(self, task: Task, t: Tensor, held: Tensor, seen: Seen, ever: Tensor) -> Tensor:
        """Shorter after a success, else longer; the first one from the linear model."""
        gamma = FINEST_GAMMA + (self.gamma - FINEST_GAMMA) * self._wave(t, held.dtype)
        up = torch.where(ever, 1 + gamma, GROWTH)
        epsilon = held * torch.where(seen.success, 1 - gamma, up)
        return torch.where(t > 0, epsilon, self._reach(task, seen))

    def _wave(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """From one to zero over the iterations."""
        return (1 + torch.cos(t.clamp_max(self.iterations).to(dtype) * (math.pi / self.iterations))) / 2

    def _reach(self, task: Task, seen: Seen) -> Tensor:
        """Where the linear model of the log-odds at the origin reaches zero."""
        steepness = norms(seen.gradient, 2).clamp_min(torch.finfo(seen.gradient.dtype).tiny)
        reach = (-task.odds(seen.logits)).clamp_min(0.0) / steepness
        return reach.to(seen.gradient.dtype).clamp(SHORTEST * task.bounds.range, LONGEST * _diagonal(task))


def _diagonal(task: Task) -> float:
    """Of the box: the longest distance there is."""
    return math.sqrt(task.origin[0].numel()) * task.bounds.range
