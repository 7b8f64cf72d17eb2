"""What an ensemble can be built from on the command line: networks, and where to get the rest.

What a method needs besides the networks (held-out data for σ, checkpoints to average, training data for BatchNorm)
comes as callables, so that nothing is loaded that is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.functional.noise import Distribution


@dataclass(frozen=True)
class Ingredients:
    """Settings that a method does not have are ignored by it."""

    models: Sequence[nn.Module]
    members: int | None = None
    sigma: float | None = None  # PEP: given, nothing is fitted
    p: float | None = None  # MC dropout: override of every rate
    where: Any = None  # PEP: the weights that are perturbed; MC dropout: the dropouts that are active, by default all
    distribution: Distribution | None = None  # of PEP's noise
    search: Literal["bracket", "golden"] | None = None  # PEP's, for σ
    seed: int = 0
    held_out: Callable[[], Iterable[Any]] | None = None
    checkpoints: Callable[[], Sequence[Mapping[str, Tensor]]] | None = None
    training: Callable[[], Iterable[Any]] | None = None
    progress: bool = False  # of what is fitted
    class_axis: int | None = None  # of the networks
    ignore_index: int | None = None  # held-out maps of labels: pixels without a class

    def network(self, method: str) -> nn.Module:
        """The one network of a method that takes one."""
        if len(self.models) != 1:
            raise InputError(f"{method} takes one network, and this model has {len(self.models)}; use --ensemble deep")
        return self.models[0]

    def weights(self, method: str) -> Sequence[Mapping[str, Tensor]]:
        """The weights of several epochs."""
        states = self.checkpoints() if self.checkpoints is not None else []
        if not states:
            raise InputError(
                f"{method} needs the weights of several epochs; train with --keep-weights N and give the run"
            )
        return states

    def batches(self) -> Iterable[Any] | None:
        """Training data, for BatchNorm."""
        return None if self.training is None else self.training()
