"""The task of an attack: which class each item must leave or reach, and the quantities that measure success.

    lead   = max_{k ≠ r} z_k − z_r            away from class r; its negative, towards it
    margin = lead − clearance                 success: margin > 0
    odds   = log Σ_{k ≠ r} e^{z_k} − z_r      = log (1 − p_r)/p_r, less the clearance

The clearance is CW's κ plus the largest rounding error between two forward passes (`boundary.rounding`). −log p_r is an
increasing function of the odds, so both have the same direction of ascent. But the gradient of the odds does not vanish
where p_r rounds to one in float32, as it does for a third of a network's confident predictions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.attacks.bounds import Bounds

State = dict[str, Tensor]
"""Name → tensor with one row per item. `point` is always there."""


@dataclass(frozen=True, eq=False)
class Task:
    """N items: their starting points, the class that each must leave (or reach), and by how much."""

    origin: Tensor  # pixels [N, …]
    reference: Tensor  # class [N]
    clearance: Tensor  # [N]
    bounds: Bounds
    targeted: bool = False

    def lead(self, logits: Tensor) -> Tensor:
        """Return by how much the logit of the wanted class leads: [N]."""
        # not amax: it divides its gradient among tied classes
        away = self._others(logits).max(-1).values - self._own(logits)
        return -away if self.targeted else away

    def margin(self, logits: Tensor) -> Tensor:
        """Return the lead less the clearance, which is positive where the attack has succeeded: [N]."""
        return self.lead(logits) - self.clearance

    def odds(self, logits: Tensor) -> Tensor:
        """Return a smooth version of the margin, which depends on all classes: [N]."""
        away = self._others(logits).logsumexp(-1) - self._own(logits)
        return (-away if self.targeted else away) - self.clearance

    def confidence(self, logits: Tensor) -> Tensor:
        """Return the log-probability of the target or, untargeted, of the likeliest other class: [N]."""
        wanted = self._own(logits) if self.targeted else self._others(logits).amax(-1)
        return wanted - logits.logsumexp(-1)

    def leads(self, logits: Tensor, most: int) -> Tensor:
        """Return z_k − z_r less the clearance for the `most` likeliest classes k, or the target's margin: [J, N]."""
        if self.targeted:
            return self.margin(logits)[None]
        others = self._others(logits).topk(min(most, logits.shape[1] - 1), -1).values
        return (others - (self._own(logits) + self.clearance)[:, None]).T

    def take(self, rows: Tensor | slice) -> Task:
        return Task(self.origin[rows], self.reference[rows], self.clearance[rows], self.bounds, self.targeted)

    def _own(self, logits: Tensor) -> Tensor:
        return logits.gather(-1, self.reference[:, None]).squeeze(-1)

    def _others(self, logits: Tensor) -> Tensor:
        return logits.scatter(-1, self.reference[:, None], -torch.inf)


@dataclass(frozen=True, eq=False)
class Seen:
    """What an attack knows about the items' points: logits, gradients, successes and distances."""

    logits: Tensor  # [N, K]
    gradient: Tensor  # [N, …], or [J, N, …] for an objective of J rows
    success: Tensor  # bool [N]
    distance: Tensor  # [N]


def norms(delta: Tensor, p: float) -> Tensor:
    """Return the L_p norm of each item: [N]."""
    length: Tensor = torch.linalg.vector_norm(delta.flatten(1), p, dim=1)
    return length


def spread(values: Tensor, like: Tensor) -> Tensor:
    """Reshape [N] to [N, 1, …], so that each item can be multiplied by its own number."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def direction(gradient: Tensor) -> Tensor:
    """Scale the gradient of each item to length one; zero stays zero."""
    length = norms(gradient, 2)
    return gradient / spread(length.clamp_min(torch.finfo(gradient.dtype).tiny), gradient)
