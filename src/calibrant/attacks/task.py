"""What an attack has to do for each item, what it sees at a point, and the quantities that judge both.

    lead   = max_{k ≠ r} z_k − z_r            away from class r; its negative, towards it
    margin = lead − clearance                 success: margin > 0
    odds   = log Σ_{k ≠ r} e^{z_k} − z_r      = log (1 − p_r)/p_r, less the clearance

The clearance is CW's κ plus what rounding may change from one forward pass to the next (`boundary.rounding`). −log p_r
is an increasing function of the odds, so both have the same direction of ascent; but the gradient of the odds does not
vanish where p_r rounds to one, as it does in float32 for a third of a network's confident predictions.
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
    """N items: where they start, which class to leave (or to reach), and by how much."""

    origin: Tensor  # pixels [N, …]
    reference: Tensor  # class [N]
    clearance: Tensor  # [N]
    bounds: Bounds
    targeted: bool = False

    def lead(self, logits: Tensor) -> Tensor:
        """[N]; how far the wanted class is ahead."""
        # max, and not amax, whose gradient is shared among classes that are tied
        away = self._others(logits).max(-1).values - self._own(logits)
        return -away if self.targeted else away

    def margin(self, logits: Tensor) -> Tensor:
        """[N]; positive where the attack has succeeded."""
        return self.lead(logits) - self.clearance

    def odds(self, logits: Tensor) -> Tensor:
        """[N]; a smooth margin, which all classes enter."""
        away = self._others(logits).logsumexp(-1) - self._own(logits)
        return (-away if self.targeted else away) - self.clearance

    def confidence(self, logits: Tensor) -> Tensor:
        """[N]; log-probability of the likeliest class that is a success: any other, or the target."""
        wanted = self._own(logits) if self.targeted else self._others(logits).amax(-1)
        return wanted - logits.logsumexp(-1)

    def leads(self, logits: Tensor, most: int) -> Tensor:
        """z_k − z_r, less the clearance, of the `most` likeliest other classes, [J, N]; the target's margin."""
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
    """At the items' points: logits, the gradient of the objective, and whether the attack has succeeded there."""

    logits: Tensor  # [N, K]
    gradient: Tensor  # [N, …], or [J, N, …] for an objective of J rows
    success: Tensor  # bool [N]
    distance: Tensor  # [N]


def norms(delta: Tensor, p: float) -> Tensor:
    """L_p norm of each item, [N]."""
    length: Tensor = torch.linalg.vector_norm(delta.flatten(1), p, dim=1)
    return length


def spread(values: Tensor, like: Tensor) -> Tensor:
    """[N] as [N, 1, …], to multiply each item by its own number."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def direction(gradient: Tensor) -> Tensor:
    """The gradient of each item at length one; zero stays zero."""
    length = norms(gradient, 2)
    return gradient / spread(length.clamp_min(torch.finfo(gradient.dtype).tiny), gradient)
