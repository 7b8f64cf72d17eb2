"""MC dropout (Gal & Ghahramani 2016): dropout stays active at test time, and the predictions of M masks are averaged.

It works on any model that has dropout *modules* (`dropout_modules.py` lists them). A functional `F.dropout(…,
training=self.training)` cannot be reached from outside, and the first pass warns of it. `insert` adds dropout to a
model and can be undone. Masks are drawn from (seed, member), and the global generators are left as found.

Operations that no dropout affects run once per batch (`dropout_graph.py`). A network that cannot be split runs whole
for every member, and one warning says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.ensembles.dropout_graph import SplitNetwork, agrees
from calibrant.ensembles.dropout_modules import (
    FunctionalDropouts,
    Insertion,
    Where,
    WithDropout,
    active,
    check_rates,
    dropouts,
    functional_dropouts,
    insert,
    rate,
    select,
)
from calibrant.ensembles.ensemble import Ensemble, Network, checked, evaluating, positive
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.inputs import Inputs, Untouched
from calibrant.ensembles.network_graph import NoGraph, compiled, copy_sharing_tensors, export, settings_of
from calibrant.ensembles.single import predict
from calibrant.errors import InputError, warn
from calibrant.functional.noise import member_seed
from calibrant.functional.probabilities import look_like_probabilities, warn_of_probabilities
from calibrant.types import Predictions

SMALL = 10**8
"""Rough number of multiplications in all members' passes, below which they take less time than tracing the network."""

MOST_GRAPHS = 8
"""The most graphs of one network, each for its own shape of input. With more of them, tracing would not pay off."""


@dataclass(frozen=True, eq=False)
class MCDropout(Ensemble):
    """M passes with dropout active and everything else in eval mode. `p` overrides every rate.

    `where` selects the active dropouts, by name ("stages" selects all below it) or as (name, module) -> bool.
    `together` members run as one batch (by default one on a CPU, and as many as fill a GPU). The masks stay the same,
    and the logits agree to rounding.
    """

    model: nn.Module
    count: int = 50
    p: float | None = None
    seed: int = 0
    together: int | None = None
    where: Where = None
    _checked: set[str] = field(default_factory=set, init=False, repr=False)  # each warning is given once
    _splits: dict[Any, dict[int, SplitNetwork | None]] = field(default_factory=dict, init=False, repr=False)

    def __init__(
        self,
        model: nn.Module,
        members: int = 50,
        p: float | None = None,
        seed: int = 0,
        together: int | None = None,
        where: Where = None,
    ) -> None:
        if together is not None:
            positive("together", together)
        positive("members", members)
        if p is not None and not (isinstance(p, Real) and 0 <= p < 1):
            raise InputError(f"p={p!r} must be a number in [0, 1)")
        if not dropouts(model):
            raise InputError(
                f"{type(model).__name__} has no dropout module (a functional F.dropout is not reachable); "
                "insert some with calibrant.ensembles.dropout.insert(model, p)"
            )
        found = select(model, where)
        where = None if where is None else tuple(found)  # equal choices are equal ensembles, however they are written
        if p is not None:
            check_rates(found)
        values = {"model": model, "count": members, "p": p, "seed": seed, "together": together, "where": where}
        for name, value in {**values, "_checked": set(), "_splits": {}}.items():
            object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_splits": {}}  # a graph belongs to this process

    @classmethod
    def build(cls, given: Ingredients) -> MCDropout:
        return cls(given.network("dropout"), given.members or 50, given.p, given.seed, where=given.where)

    @property
    def size(self) -> int:
        return self.count

    def predict(self, loader: Iterable[Any], *, keep_members: bool = False, **options: Any) -> Predictions:
        """Predict as every ensemble does. Pooled predictions go batch by batch, so that members share operations."""
        if keep_members:
            return super().predict(loader, keep_members=True, **options)
        options = {"device": self.home, **{k: v for k, v in options.items() if v is not None}}
        return replace(predict(self, loader, **options), raw=False)

    def blocks(self, inputs: Inputs, axis: int | None) -> Generator[Tensor, None, None]:
        """Run the members as every ensemble does. If the batch is one tensor, they share operations."""
        if inputs[1] or len(inputs[0]) != 1 or not isinstance(inputs[0][0], Tensor):
            yield from super().blocks(inputs, axis)
            return
        (x,), found, untouched = inputs[0], select(self.model, self.where), Untouched()
        seeds = [member_seed(self.seed, j) for j in range(self.count)]
        with self._active(list(found.values())) as network:

            def logits(output: Any, members: int = 1) -> Tensor:
                out = checked(output, members * len(x), axis)
                return out.reshape(members, len(x), *out.shape[1:])

            def whole(j: int) -> Tensor:
                with untouched(x):
                    block = logits(self._seeded(network, seeds[j])(x))
                self._warn_of_probabilities(block)
                return block

            def grouped(split: SplitNetwork, shared: Any, group: Sequence[int]) -> Tensor:
                return logits(split.members(shared, len(x), group, self._generators()), len(group))

            split = self._split(x, found)
            shared = None if split is None else split.shared(self.model, x)
            size = 0 if split is None else self._group(split, x, seeds, whole, partial(grouped, split, shared))
            if split is None or not size:
                yield from map(whole, range(self.count))
                return
            for start in range(0, self.count, size):
                yield grouped(split, shared, seeds[start : start + size])

    def _split(self, x: Tensor, found: dict[str, nn.Module]) -> SplitNetwork | None:
        """Return the network's graph for this batch, or None if members run whole."""
        work = self.count * len(x) * math.prod(x.shape[2:]) * sum(p.numel() for p in self.model.parameters())
        shares = self.count > 1 and len(x) > 0 and any(rate(m, self.p) > 0 for m in found.values())
        if not shares or (work < SMALL and self.together is None):
            return None
        key = (settings_of(self.model), x.shape[1:], x.stride()[1:], x.dtype, x.device)
        known = self._splits.setdefault(key, {})  # by batch size
        split = next((s for s in known.values() if s is not None and s.takes(len(x))), None)
        if split is None and len(x) not in known:
            try:
                if sum(map(len, self._splits.values())) >= MOST_GRAPHS:
                    raise NoGraph(f"its batches have more than {MOST_GRAPHS} shapes")
                copy = copy_sharing_tensors(self.model)
                with active([copy.get_submodule(name) for name in found], self.p):
                    split = SplitNetwork(export(copy, x), len(x))
            except NoGraph as why:
                self._run_whole(why)
            known[len(x)] = split
        return None if split is None or False in split.verified.values() else split

    def _group(
        self,
        split: SplitNetwork,
        x: Tensor,
        seeds: Sequence[int],
        whole: Callable[[int], Tensor],
        grouped: Callable[[Sequence[int]], Tensor],
    ) -> int:
        """Return how many members to stack, or 0 if the graph gives other logits than the network."""
        size = split.group(x, self.count, self.together)
        if (size > 1) not in split.verified:
            half = split.half or torch.is_autocast_enabled(x.device.type)  # the logits themselves may be wider
            split.verified[size > 1] = agrees(whole(size // 2)[0], grouped(seeds[:size])[size // 2], half=half)
        if split.verified[size > 1]:
            return size
        self._run_whole("its graph gives other numbers than its code")
        return 0

    def _run_whole(self, why: object) -> None:
        if "whole" not in self._checked:
            self._checked.add("whole")
            warn(f"MC dropout runs {type(self.model).__name__} whole for every member: {why}")

    def _warn_of_probabilities(self, block: Tensor) -> None:
        """Warn once if the network returns probabilities; pooling would hide it."""
        if "probabilities" not in self._checked and look_like_probabilities(block, binary=False):
            warn_of_probabilities(f"{type(self.model).__name__}: ")
        self._checked.add("probabilities")

    def _devices(self) -> list[torch.device]:
        return sorted({t.device for t in self.model.parameters() if t.device.type == "cuda"}, key=str)

    def _generators(self) -> list[torch.Generator]:
        return [torch.default_generator, *(torch.cuda.default_generators[d.index or 0] for d in self._devices())]

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        with self._active(list(select(self.model, self.where).values())) as network:
            yield self._seeded(network, member_seed(self.seed, j))

    def _seeded(self, network: Network, seed: int) -> Network:
        def seeded(*args: Any, **kwargs: Any) -> Any:
            for generator in self._generators():  # at every call, so that masks do not depend on earlier batches
                generator.manual_seed(seed)
            if "functional" not in self._checked:
                return self._report_functional(network, *args, **kwargs)
            return network(*args, **kwargs)

        return seeded

    def _report_functional(self, network: Network, *args: Any, **kwargs: Any) -> Any:
        """Run the very first pass, and warn if it calls dropout that belongs to no module."""
        self._checked.add("functional")
        if compiled(self.model):  # compiled code calls no Python functions that could be seen
            return network(*args, **kwargs)
        with FunctionalDropouts(self.model) as calls:
            output = network(*args, **kwargs)
        if calls.found:
            warn(
                f"{type(self.model).__name__} calls a functional dropout {calls.found} time(s) per pass, which MC "
                "dropout cannot reach, so it stays as the forward pass sets it; use nn.Dropout instead"
            )
        return output

    @contextmanager
    def _active(self, found: Sequence[nn.Module]) -> Iterator[Network]:
        """Switch these dropouts on and everything else to eval mode; restore the global generators afterwards."""
        fork = torch.random.fork_rng(devices=self._devices())
        with evaluating(self.model) as network, fork, active(found, self.p):
            yield network


__all__ = ["Insertion", "MCDropout", "WithDropout", "dropouts", "functional_dropouts", "insert"]
