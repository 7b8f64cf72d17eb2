"""Stochastic weight averaging (Izmailov 2018): the mean of weights along the end of training.

The average network has other BatchNorm statistics than the networks that were averaged, so they are measured again on
training data (`recalibrate`). A model without BatchNorm needs no data.
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
    """Return the mean of state dicts, accumulated in float64. Integer buffers are those of the last one."""
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
    """Measure every BatchNorm's mean and variance again, as an average over batches. Return the number of batches."""
    norms = [m for m in model.modules() if isinstance(m, _NORM) and m.track_running_stats]
    if not norms:
        return 0
    momenta = [m.momentum for m in norms]
    device = next(model.parameters()).device
    seen = 0
    try:
        # a DataLoader draws a seed for its workers from the global generator
        with evaluating(model), torch.random.fork_rng(devices=[]):
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
    """One network at the mean of the weights of many, so M = 1."""

    model: nn.Module

    def __post_init__(self) -> None:
        module(self.model)

    @classmethod
    def fit(cls, model: nn.Module, states: Sequence[Mapping[str, Tensor]], train: Iterable[Any] | None = None) -> SWA:
        """Return a copy of `model` at the average of `states`. A model with BatchNorm needs batches of training
        data."""
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
