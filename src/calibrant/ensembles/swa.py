"""Stochastic weight averaging (Izmailov 2018): the mean of weights along the end of training.

BatchNorm's statistics belong to none of the averaged networks, so they are measured again on training
data (`recalibrate`); a model without BatchNorm needs no data.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.ensembles.ensemble import Ensemble, evaluating, module
from calibrant.ensembles.ingredients import Ingredients
from calibrant.errors import InputError

_NORM = nn.modules.batchnorm._BatchNorm


def average(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of state dicts, accumulated in float64; integer buffers are taken from the last."""
    total: dict[str, Tensor] = {}
    count = 0
    last: Mapping[str, Tensor] = {}
    for state in states:
        if total and state.keys() != last.keys():
            raise InputError("the checkpoints to average hold different parameters")
        for name, value in state.items():
            if value.is_floating_point():
                total[name] = total[name] + value.double() if name in total else value.double().clone()
        last, count = state, count + 1
    if not count:
        raise InputError("there are no checkpoints to average")
    return {n: (total[n] / count).to(v.dtype) if n in total else v.clone() for n, v in last.items()}


def has_batchnorm(model: nn.Module) -> bool:
    return any(isinstance(m, _NORM) and m.track_running_stats for m in model.modules())


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Any]) -> int:
    """Measure every BatchNorm's running mean and variance anew, as a plain average over batches."""
    norms = [m for m in model.modules() if isinstance(m, _NORM) and m.track_running_stats]
    if not norms:
        return 0
    momenta = [m.momentum for m in norms]
    device = next(model.parameters()).device
    seen = 0
    try:
        with evaluating(model):
            for m in norms:
                m.reset_running_stats()
                m.momentum, m.training = None, True  # momentum None: cumulative average
            for batch in batches:
                x = batch[0] if isinstance(batch, (tuple, list)) else batch
                model(x.to(device))
                seen += 1
            for m in norms:
                m.training = False
    finally:
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
    if not seen:
        raise InputError("recalibrating BatchNorm needs training batches, and there were none")
    return seen


@dataclass(frozen=True, eq=False)
class SWA(Ensemble):
    """One network at the mean of many: M = 1, but it stands in the family's tables."""

    model: nn.Module

    def __post_init__(self) -> None:
        module(self.model)

    @classmethod
    def fit(cls, model: nn.Module, states: Sequence[Mapping[str, Tensor]], train: Iterable[Any] | None = None) -> SWA:
        """A copy of `model` at the average of `states`; `train` yields batches when there is BatchNorm."""
        averaged = copy.deepcopy(model)
        averaged.load_state_dict(average(states))
        if has_batchnorm(averaged):
            if train is None:
                raise InputError("this model has BatchNorm: pass train=, batches of training data to measure it again")
            recalibrate(averaged, train)
        return cls(averaged)

    @classmethod
    def build(cls, given: Ingredients) -> SWA:
        return cls.fit(given.network("swa"), given.weights("swa"), given.batches())
