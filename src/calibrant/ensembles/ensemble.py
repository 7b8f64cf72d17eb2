"""What every ensemble shares: `member(j)` gives a callable network; the rest follows from it.

Members are pooled in log space as they stream, log (1/M) Σ_m softmax(z_m), so that fifty members of a
thousand classes need the memory of two. Over a whole data set members are the outer loop: each is
made once, not once a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.errors import InputError

Network = Callable[[Tensor], Tensor]


class Ensemble:
    """Abstract: a method writes `size` and `member`. Calling pools; `members(x)` is [M, N, K]."""

    @property
    def size(self) -> int:
        raise TypeError(f"{type(self).__name__} must define size")

    def member(self, j: int) -> AbstractContextManager[Network]:
        """The j-th network, valid inside the `with`; the model is as before afterwards."""
        raise TypeError(f"{type(self).__name__} must define member")

    @torch.no_grad()
    def members(self, x: Tensor) -> Tensor:
        return torch.stack([self._run(j, x) for j in range(self.size)])

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        pooled = LogMean()
        for j in range(self.size):
            pooled.add(self._run(j, x))
        return pooled.value()

    @torch.no_grad()
    def over(self, batches: Iterable[Tensor], progress: Callable[[int, int], None] | None = None) -> Iterator[Tensor]:
        """Member after member, its logits [N, K] over all batches (`batches` is iterated M times)."""
        for j in range(self.size):
            with self.member(j) as network:
                yield torch.cat([logits_of(network(x), len(x)) for x in batches])
            if progress is not None:
                progress(j + 1, self.size)

    def _run(self, j: int, x: Tensor) -> Tensor:
        with self.member(j) as network:
            return logits_of(network(x), len(x))


class LogMean:
    """Running log of the mean probability over members, float64."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: Tensor | None = None

    def add(self, logits: Tensor) -> None:
        log_p = torch.log_softmax(logits.double(), -1)
        self.sum = log_p if self.sum is None else torch.logaddexp(self.sum, log_p)
        self.count += 1

    def value(self) -> Tensor:
        assert self.sum is not None, "no member was added"
        return self.sum - math.log(self.count)


def logits_of(output: Any, n: int) -> Tensor:
    """[N, K] from what a network returned: a tensor, or an object with `.logits`."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != n or logits.shape[1] < 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"the model returned {shape} for {n} items; expected logits [N, K] with K ≥ 2")
    return logits


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Every module in eval mode inside, each back in its own mode afterwards."""
    training = [m for m in model.modules() if m.training]
    for m in training:
        m.training = False
    try:
        yield model
    finally:
        for m in training:
            m.training = True
