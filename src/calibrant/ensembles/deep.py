"""Deep ensembles (Lakshminarayanan 2017): M networks, each trained from its own seed, averaged.

Members may differ in architecture; only the number of classes must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from calibrant.ensembles.ensemble import Ensemble, module
from calibrant.ensembles.ingredients import Ingredients
from calibrant.errors import InputError


@dataclass(frozen=True, eq=False)
class DeepEnsemble(Ensemble):
    """Several networks that were trained independently."""

    options: ClassVar[tuple[str, ...]] = ("members",)

    models: tuple[nn.Module, ...]

    def __init__(self, models: Sequence[nn.Module]) -> None:
        if isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList):
            raise InputError(f"a deep ensemble is made of a list of models, and this is one {type(models).__name__}")
        if not len(models):
            raise InputError("a deep ensemble needs at least one model")
        object.__setattr__(self, "models", tuple(map(module, models)))

    @classmethod
    def build(cls, given: Ingredients) -> DeepEnsemble:
        found = len(given.models)
        if found < 2:
            raise InputError(
                "a deep ensemble needs several networks: train with --set members=5, or give several models"
            )
        count = given.members or found
        if count > found:
            raise InputError(f"{count} members were asked for, and this model has {found}")
        return cls(given.models[:count])
