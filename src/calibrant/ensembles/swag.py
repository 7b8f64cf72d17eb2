"""SWAG (Maddox 2019): a Gaussian around the SWA mean, diagonal plus low rank, sampled M times.

    θ = θ_SWA + 1/√2 · Σ_diag^½ z₁ + 1/√(2(R−1)) · D z₂,    D = last R deviations from the mean

Each member measures its BatchNorm statistics on training data once and keeps them. A sample is a seed; only the moments
are stored. `scale` multiplies the square root of the covariance (0: SWA itself).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calibrant.ensembles.ensemble import Ensemble, Network, evaluating
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.perturbation import rewritten
from calibrant.ensembles.swa import SWA, has_batchnorm, recalibrate
from calibrant.errors import InputError
from calibrant.functional.noise import member_seed


@dataclass(frozen=True, eq=False)
class SWAG(Ensemble):
    """M draws from a Gaussian that is fitted to the weights at the end of training."""

    options: ClassVar[tuple[str, ...]] = ("members",)

    model: nn.Module  # at the mean
    variance: Mapping[str, Tensor]  # diagonal part, by parameter
    deviations: Mapping[str, Tensor]  # [R, …], by parameter
    count: int = 20
    scale: float = 1.0
    seed: int = 0
    train: Sequence[Any] | None = None
    _buffers: dict[int, dict[str, Tensor]] = field(default_factory=dict, repr=False)

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        states: Sequence[Mapping[str, Tensor]],
        train: Iterable[Any] | None = None,
        *,
        members: int = 20,
        rank: int = 20,
        scale: float = 1.0,
        seed: int = 0,
    ) -> SWAG:
        """Fit the moments to two or more checkpoints. A model with BatchNorm needs batches of training data."""
        if len(states) < 2:
            raise InputError(f"SWAG needs at least 2 checkpoints to have a spread, not {len(states)}")
        if members < 1 or rank < 0 or scale < 0:
            raise InputError(f"members={members}, rank={rank}, scale={scale}: must be ≥ 1, ≥ 0 and ≥ 0")
        batches = None if train is None else list(train)
        mean_model = SWA.fit(model, states, batches).model
        variance, deviations = {}, {}
        for name, mean in mean_model.named_parameters():
            spread = torch.stack([s[name].detach().to(mean.device, torch.float64) - mean.double() for s in states])
            variance[name] = spread.square().mean(0).detach()
            deviations[name] = spread[-rank:].detach() if rank else spread[:0]
        return cls(mean_model, variance, deviations, members, scale, seed, batches)

    @classmethod
    def build(cls, given: Ingredients) -> SWAG:
        model, states = given.network("swag"), given.weights("swag")
        return cls.fit(model, states, given.batches(), members=given.members or 20, seed=given.seed)

    @property
    def size(self) -> int:
        return self.count

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        parameters = {name: p.data for name, p in self.model.named_parameters()}

        def draw(_: Sequence[Tensor]) -> None:
            for name, value in self._draw(j).items():
                parameters[name].copy_(value)

        drawn = rewritten([*parameters.values(), *self.model.buffers()], draw)
        with drawn if self.scale else nullcontext():
            if self.scale:
                self._statistics(j)
            with evaluating(self.model) as network:
                yield network

    def _draw(self, j: int) -> dict[str, Tensor]:
        # on the CPU and in float64, so that draws are the same on every device
        g = torch.Generator().manual_seed(member_seed(self.seed, j))
        rank = len(next(iter(self.deviations.values())))
        along = torch.randn(rank, generator=g, dtype=torch.float64)
        out = {}
        for name, mean in self.model.named_parameters():
            variance = self.variance[name]  # on the device of the fit; the network may have moved since
            own = torch.randn(mean.shape, generator=g, dtype=torch.float64).to(variance.device)
            step = own * variance.sqrt() / math.sqrt(2)
            if rank > 1:
                low = torch.tensordot(along.to(variance.device), self.deviations[name], 1)
                step = step + low / math.sqrt(2 * (rank - 1))
            out[name] = (mean.detach().double() + (self.scale * step).to(mean.device)).to(mean.dtype)
        return out

    def _statistics(self, j: int) -> None:
        if not has_batchnorm(self.model):
            return
        if j not in self._buffers:
            assert self.train is not None
            recalibrate(self.model, self.train)
            self._buffers[j] = {n: b.clone() for n, b in self.model.named_buffers()}
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self._buffers[j][name])
