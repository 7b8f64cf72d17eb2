"""An ensemble by its name on the command line, from the networks that a reference holds.

What a method needs besides the networks (held-out data for σ, checkpoints to average, training data for BatchNorm)
comes as callables, so that nothing is loaded that is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from calibrant.ensembles import ENSEMBLES
from calibrant.ensembles.deep import Deep
from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.dropping import Where
from calibrant.ensembles.ensemble import Ensemble
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.snapshot import Snapshot
from calibrant.ensembles.swa import SWA
from calibrant.ensembles.swag import SWAG
from calibrant.ensembles.temporal import TemporalSmoothing
from calibrant.errors import InputError, unknown


@dataclass(frozen=True)
class Ingredients:
    """Networks, and where to get the rest. Settings that a method does not have are ignored by it."""

    models: Sequence[nn.Module]
    members: int | None = None
    sigma: float | None = None  # PEP: given, nothing is fitted
    p: float | None = None  # MC dropout: override of every rate
    where: Where = None  # MC dropout: the dropouts that are active, by default all
    seed: int = 0
    held_out: Callable[[], Iterable[Any]] | None = None
    checkpoints: Callable[[], Sequence[Mapping[str, Tensor]]] | None = None
    training: Callable[[], Iterable[Any]] | None = None
    progress: bool = False  # of what is fitted


def assemble(name: str, given: Ingredients) -> Ensemble:
    """The ensemble `name` of the table, ready to predict."""
    if name not in ENSEMBLES:
        raise unknown("ensemble", name, ENSEMBLES)
    if name == "deep":
        return _deep(given)
    if len(given.models) != 1:
        raise InputError(f"{name} takes one network, and this model has {len(given.models)}; use --ensemble deep")
    model = given.models[0]
    if name == "pep":
        return _pep(model, given)
    if name == "temporal":
        return TemporalSmoothing(model)
    if name == "dropout":
        return MCDropout(model, given.members or 50, given.p, given.seed, where=given.where)
    states = given.checkpoints() if given.checkpoints is not None else []
    if not states:
        raise InputError(f"{name} needs the weights of several epochs; train with --keep-weights N and give the run")
    if name == "snapshot":
        return Snapshot.fit(model, states)
    train = None if given.training is None else given.training()
    if name == "swa":
        return SWA.fit(model, states, train)
    return SWAG.fit(model, states, train, members=given.members or 20, seed=given.seed)


def _deep(given: Ingredients) -> Deep:
    if len(given.models) < 2:
        raise InputError("a deep ensemble needs several networks: train with --set members=5, or give several models")
    count = given.members or len(given.models)
    if count > len(given.models):
        raise InputError(f"{count} members were asked for, and this model has {len(given.models)}")
    return Deep(given.models[:count])


def _pep(model: nn.Module, given: Ingredients) -> PEP:
    members = given.members or 10
    if given.sigma is not None:
        return PEP(model, given.sigma, members, seed=given.seed)
    if given.held_out is None:
        raise InputError("PEP needs held-out data to choose σ; give it, or --sigma")
    fitted = PEP.fit(model, given.held_out(), seed=given.seed, progress=given.progress)
    more = (fitted.distribution, fitted.where, fitted.seed, fitted.antithetic, fitted.certificate)
    return PEP(model, fitted.sigma, members, *more)
