"""What the command line provides to build an ensemble: networks, settings and data.

Data that only some methods need (held-out data for σ, checkpoints to average, training data for BatchNorm) are
callables, so that nothing is loaded that is not used.
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
    """What a method may be built from. A method ignores settings that it does not have."""

    models: Sequence[nn.Module]
    members: int | None = None
    sigma: float | None = None  # PEP: if given, nothing is fitted
    p: float | None = None  # MC dropout: overrides every rate
    where: Any = None  # PEP: the weights to perturb; MC dropout: the dropouts to switch on, by default all
    distribution: Distribution | None = None  # PEP: the distribution of the noise
    search: Literal["bracket", "golden"] | None = None  # PEP: how σ is found
    seed: int = 0
    held_out: Callable[[], Iterable[Any]] | None = None
    checkpoints: Callable[[], Sequence[Mapping[str, Tensor]]] | None = None
    training: Callable[[], Iterable[Any]] | None = None
    progress: bool = False  # shows the progress of fitting
    class_axis: int | None = None  # axis of classes in the networks' outputs
    ignore_index: int | None = None  # label of pixels without a class in held-out maps

    def network(self, method: str) -> nn.Module:
        """Return the network of a method that takes exactly one."""
        if len(self.models) != 1:
            raise InputError(f"{method} takes one network, and this model has {len(self.models)}; use --ensemble deep")
        return self.models[0]

    def weights(self, method: str) -> Sequence[Mapping[str, Tensor]]:
        """Return the weights of several epochs."""
        states = self.checkpoints() if self.checkpoints is not None else []
        if not states:
            raise InputError(
                f"{method} needs the weights of several epochs; train with --keep-weights N and give the run"
            )
        return states

    def batches(self) -> Iterable[Any] | None:
        """Return training data for BatchNorm, if there are any."""
        return None if self.training is None else self.training()
