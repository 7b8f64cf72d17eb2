"""MC dropout (Gal & Ghahramani 2016): dropout stays active at test time, and the predictions of M masks are averaged.

It works on any model that has dropout *modules* (`dropout_modules.py` lists them). A functional `F.dropout(…,
training=self.training)` cannot be reached from outside, and the first pass warns of it. `insert` adds dropout to a
model and can be undone. Masks are drawn from (seed, member), and the global generators are left as found.

Operations that no dropout affects run once per batch (`dropout_graph.py`). A network that cannot be split runs whole
for every member from then on, and one warning says why.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from calibrant.ensembles.inputs import Inputs, copied
from calibrant.ensembles.network_graph import NoGraph, compiled, copy_sharing_tensors, export, settings_of
from calibrant.ensembles.prediction import predict
from calibrant.errors import InputError, warn
from calibrant.functional.noise import member_seed
from calibrant.functional.probabilities import look_like_probabilities, warn_of_probabilities
from calibrant.types import Predictions

SMALL = 10**8
"""Rough number of multiplications in all members' passes, below which they take less time than tracing the network."""

MOST_GRAPHS = 8
"""The most graphs of one network, each for its own shape of input. With more of them, tracing would not pay off."""


class MCDropout(Ensemble):
    """M passes with dropout active and everything else in eval mode. `p` overrides every rate.

    `where` selects the active dropouts, by name ("stages" selects all below it) or as (name, module) -> bool.
    `together` members run as one batch (by default one on a CPU, and as many as fill a GPU). The masks stay the same,
    and the logits agree to rounding.
    """

    options = ("members", "p", "where")

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
        if p is not None and not (isinstance(p, Real) and 0 <= p < 1):
            raise InputError(f"p={p!r} must be a number in [0, 1)")
        self.model, self.count, self.p = model, positive("members", members), p
        self.seed, self.together = seed, together
        if not dropouts(model):
            raise InputError(
                f"{type(model).__name__} has no dropout module (a functional F.dropout is not reachable); "
                "insert some with calibrant.ensembles.dropout.insert(model, p)"
            )
        found = select(model, where)
        self.where = None if where is None else tuple(found)  # equal selections are equal settings
        if p is not None:
            check_rates(found)
        self._checked: set[str] = set()  # each warning is given once
        self._whole = False  # the network has no graph
        self._splits: list[tuple[Any, SplitNetwork]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_splits": []}  # a graph belongs to this process

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
        found = self._split(inputs, axis)
        if found is None:
            for block in super().blocks(inputs, axis):
                self._warn_of_probabilities(block)
                yield block
            return
        (split, size), x = found, inputs[0][0]
        with self._active():
            shared = split.shared(self.model, x)
            for start in range(0, self.count, size):
                yield self._group(split, shared, x, range(start, min(start + size, self.count)), axis)

    def _group(self, split: SplitNetwork, shared: Any, x: Tensor, members: range, axis: int | None) -> Tensor:
        """Return the logits of these members, [G, N, …] with the classes last."""
        seeds = [member_seed(self.seed, j) for j in members]
        logits = checked(split.members(shared, len(x), seeds, self._generators()), len(members) * len(x), axis)
        return logits.reshape(len(members), len(x), *logits.shape[1:])

    def _split(self, inputs: Inputs, axis: int | None) -> tuple[SplitNetwork, int] | None:
        """Return the network's graph and the number of members in a group, or None if members run whole."""
        args, kwargs = inputs
        x = args[0] if len(args) == 1 and not kwargs else None
        if self._whole or not isinstance(x, Tensor) or not self._worth_tracing(x):
            return None
        try:
            split = self._graph(x)
            size = split.group(x, self.count, self.together)
            self._verify(split, size, x, axis)
        except NoGraph as why:
            self._whole = True
            warn(f"MC dropout runs {type(self.model).__name__} whole for every member: {why}")
            return None
        return split, size

    def _worth_tracing(self, x: Tensor) -> bool:
        work = self.count * len(x) * math.prod(x.shape[2:]) * sum(p.numel() for p in self.model.parameters())
        drops = any(rate(m, self.p) > 0 for m in select(self.model, self.where).values())
        return self.count > 1 and len(x) > 0 and drops and (work >= SMALL or self.together is not None)

    def _graph(self, x: Tensor) -> SplitNetwork:
        key = (settings_of(self.model), x.shape[1:], x.stride()[1:], x.dtype, x.device)
        for known, split in self._splits:
            if known == key and split.takes(len(x)):
                return split
        if len(self._splits) >= MOST_GRAPHS:
            raise NoGraph(f"its batches have more than {MOST_GRAPHS} shapes")
        copy = copy_sharing_tensors(self.model)
        with self._active(copy):
            split = SplitNetwork(export(copy, x), len(x))
        if not split.takes(len(x)):
            raise NoGraph("its code reads the number of items, and a batch has only one")
        self._splits.append((key, split))
        return split

    def _verify(self, split: SplitNetwork, size: int, x: Tensor, axis: int | None) -> None:
        """Compare one member with a pass of the network, once for single members and once for groups."""
        if (size > 1) in split.verified:
            return
        with self.member(size // 2) as network:
            expected = checked(network(copied(x)), len(x), axis)
        self._warn_of_probabilities(expected)
        with self._active():
            found = self._group(split, split.shared(self.model, x), x, range(size), axis)[size // 2]
        half = split.half or torch.is_autocast_enabled(x.device.type)  # the logits themselves may be wider
        if not agrees(expected, found, half=half):
            raise NoGraph("its graph gives other numbers than its code")
        split.verified.add(size > 1)

    def _warn_of_probabilities(self, logits: Tensor) -> None:
        """Warn once if the network returns probabilities; pooling would hide it."""
        if "probabilities" not in self._checked and look_like_probabilities(logits, binary=False):
            warn_of_probabilities(f"{type(self.model).__name__}: ")
        self._checked.add("probabilities")

    def _devices(self) -> list[torch.device]:
        return sorted({t.device for t in self.model.parameters() if t.device.type == "cuda"}, key=str)

    def _generators(self) -> list[torch.Generator]:
        return [torch.default_generator, *(torch.cuda.default_generators[d.index or 0] for d in self._devices())]

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        def seeded(*args: Any, **kwargs: Any) -> Any:
            for generator in self._generators():  # at every call, so that masks do not depend on earlier batches
                generator.manual_seed(member_seed(self.seed, j))
            if "functional" not in self._checked:
                return self._report_functional(network, *args, **kwargs)
            return network(*args, **kwargs)

        with self._active() as network:
            yield seeded

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
    def _active(self, model: nn.Module | None = None) -> Iterator[Network]:
        """Switch the selected dropouts of the network (or of a copy) on, and everything else to eval mode.

        The global generators are restored afterwards."""
        model = self.model if model is None else model
        found = select(model, self.where)
        fork = torch.random.fork_rng(devices=self._devices())
        with evaluating(model) as network, fork, active(list(found.values()), self.p):
            yield network


__all__ = ["Insertion", "MCDropout", "WithDropout", "dropouts", "functional_dropouts", "insert"]
