"""Snapshot ensembles (Huang 2017): M checkpoints of one training run, kept at the minima of a cyclic learning rate.

This is a deep ensemble at the cost of one run.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from calibrant.ensembles.deep import DeepEnsemble
from calibrant.ensembles.ingredients import Ingredients
from calibrant.errors import InputError


@dataclass(frozen=True, eq=False)
class Snapshot(DeepEnsemble):
    """Checkpoints of one run, averaged as predictions (not as weights: that is SWA)."""

    options: ClassVar[tuple[str, ...]] = ()  # the run decides how many members there are

    @classmethod
    def fit(cls, model: nn.Module, states: Sequence[Mapping[str, Tensor]]) -> Snapshot:
        """Return an ensemble of one copy of `model` per state dict."""
        if not states:
            raise InputError("a snapshot ensemble needs at least one checkpoint")
        copies = [copy.deepcopy(model) for _ in states]
        for each, state in zip(copies, states, strict=True):
            each.load_state_dict(state)
        return cls(tuple(copies))

    @classmethod
    def build(cls, given: Ingredients) -> Snapshot:
        return cls.fit(given.network("snapshot"), given.weights("snapshot"))
