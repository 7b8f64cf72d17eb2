"""What an attack is asked to do with each item, what it sees at a point, and the quantities both are judged by.

    margin = max_{k ≠ r} z_k − z_r            away from class r; its negative, towards it.  Success: margin > 0
    odds   = log Σ_{k ≠ r} e^{z_k} − z_r      = log (1 − p_r)/p_r

Both less κ, where a success must be that confident (CW's κ; else 0).

−log p_r is a growing function of the odds, so that both have the same direction of ascent; but the odds' gradient does
not vanish where p_r rounds to one, which in float32 it does for a third of a network's confident predictions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.attacks.bounds import Bounds

State = dict[str, Tensor]
"""Name → tensor with one row for each item. `point` and `done` are always there."""


@dataclass(frozen=True, eq=False)
class Task:
    """N items: where they start, which class they are to leave (or to reach), and how far they may go."""

    origin: Tensor  # pixels [N, …]
    reference: Tensor  # class [N]
    bounds: Bounds
    targeted: bool = False
    kappa: float = 0.0  # the margin that is no success yet

    def margin(self, logits: Tensor) -> Tensor:
        """[N]; positive where the attack has succeeded. A constant added to the logits does not change it."""
        return self._short(self._signed(self._others(logits).amax(-1) - self._own(logits)))

    def odds(self, logits: Tensor) -> Tensor:
        """[N]; grows as the attack gets nearer."""
        return self._short(self._signed(self._others(logits).logsumexp(-1) - self._own(logits)))

    def confidence(self, logits: Tensor) -> Tensor:
        """[N]; log-probability of the likeliest class that is a success: any other, or the target."""
        wanted = self._own(logits) if self.targeted else self._others(logits).amax(-1)
        return wanted - logits.logsumexp(-1)

    def succeeded(self, logits: Tensor) -> Tensor:
        return self.margin(logits) > 0

    def likeliest(self, logits: Tensor, most: int) -> Tensor:
        """The `most` classes with the largest logits besides the reference, [J, N]."""
        return self._others(logits).topk(min(most, logits.shape[1] - 1), -1).indices.T

    def leads(self, logits: Tensor, classes: Tensor) -> Tensor:
        """z_k − z_r of the classes [J, N] that are given for each item."""
        return logits.T.gather(0, classes) - self._own(logits)

    def take(self, chosen: Tensor | slice) -> Task:
        return Task(self.origin[chosen], self.reference[chosen], self.bounds, self.targeted, self.kappa)

    def _own(self, logits: Tensor) -> Tensor:
        return logits.gather(-1, self.reference[:, None]).squeeze(-1)

    def _others(self, logits: Tensor) -> Tensor:
        return logits.scatter(-1, self.reference[:, None], -torch.inf)

    def _signed(self, away: Tensor) -> Tensor:
        return -away if self.targeted else away

    def _short(self, value: Tensor) -> Tensor:
        return value - self.kappa if self.kappa else value


@dataclass(frozen=True, eq=False)
class Seen:
    """At the items' points: logits, the objective's gradient, and how the attack stands."""

    logits: Tensor  # [N, K]
    gradient: Tensor  # [N, …], or [J, N, …] for an objective of J rows
    success: Tensor  # bool [N]
    distance: Tensor  # [N]


def norms(delta: Tensor, p: float) -> Tensor:
    """L_p norm of each item, [N]."""
    length: Tensor = torch.linalg.vector_norm(delta.flatten(1), p, dim=1)
    return length


def spread(values: Tensor, like: Tensor) -> Tensor:
    """[N] as [N, 1, …], to multiply what an item has many of."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def direction(gradient: Tensor) -> Tensor:
    """Each item's gradient at length one; zero stays zero."""
    length = norms(gradient, 2)
    return gradient / spread(length.clamp_min(torch.finfo(gradient.dtype).tiny), gradient)
