"""MC dropout (Gal & Ghahramani 2016): dropout stays active at test time, M masks, averaged.

Works on any model that has dropout *modules* (`dropout_modules.py` says which); a functional `F.dropout(…,
training=self.training)` cannot be reached from outside, and the first pass warns of it. `insert` puts dropout where a
model has none, and can be undone. Masks are drawn from (seed, member), and the global generators are left as found.

What no dropout touches runs once per batch (`dropout_graph.py`); a network that cannot be split is run whole for every
member, with a warning that says why.
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

from calibrant.ensembles.dropout_graph import Split, agrees
from calibrant.ensembles.dropout_modules import (
    Insertion,
    Watch,
    Where,
    WithDropout,
    check_rates,
    chosen,
    dropouts,
    dropping,
    functional_dropouts,
    insert,
    rate,
)
from calibrant.ensembles.ensemble import Ensemble, Network, checked, evaluating, positive
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.inputs import Inputs, Untouched
from calibrant.ensembles.network_graph import NoGraph, compiled, export, settings_of, twin
from calibrant.ensembles.single import predict
from calibrant.errors import InputError, warn
from calibrant.functional.noise import member_seed
from calibrant.functional.probabilities import look_like_probabilities, warn_of_probabilities
from calibrant.types import Predictions

SMALL = 10**8
"""Multiplications, roughly, of all members' passes below which tracing the network takes longer than they do."""

MOST_GRAPHS = 8
"""Graphs of one network, each for its own shape of input; with more of them, tracing would not pay."""


@dataclass(frozen=True, eq=False)
class MCDropout(Ensemble):
    """M passes with dropout active and everything else in eval mode. `p` overrides every rate.

    `where`: only these dropouts are active, by name ("stages": all below it) or as (name, module) -> bool.
    `together` members run as one batch (by default one on a CPU, and on a GPU as many as fill it): the masks stay
    the same, the logits agree to rounding.
    """

    model: nn.Module
    count: int = 50
    p: float | None = None
    seed: int = 0
    together: int | None = None
    where: Where = None
    _seen: set[str] = field(default_factory=set, init=False, repr=False)  # what was reported already
    _splits: dict[Any, dict[int, Split | None]] = field(default_factory=dict, init=False, repr=False)  # by batch size

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
        found = chosen(model, where)
        where = None if where is None else tuple(found)  # the same choice is the same ensemble, however it is written
        if p is not None:
            check_rates(found)
        values = {"model": model, "count": members, "p": p, "seed": seed, "together": together, "where": where}
        for name, value in {**values, "_seen": set(), "_splits": {}}.items():
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
        """As for every ensemble; pooled predictions go batch by batch, to share what precedes the dropout."""
        if keep_members:
            return super().predict(loader, keep_members=True, **options)
        options = {"device": self.home, **{k: v for k, v in options.items() if v is not None}}
        return replace(predict(self, loader, **options), raw=False)

    def blocks(self, inputs: Inputs, axis: int | None) -> Generator[Tensor, None, None]:
        """As for every ensemble; of a batch that is one tensor, what no dropout touches runs once."""
        if inputs[1] or len(inputs[0]) != 1 or not isinstance(inputs[0][0], Tensor):
            yield from super().blocks(inputs, axis)
            return
        (x,), found, untouched = inputs[0], chosen(self.model, self.where), Untouched()
        seeds = [member_seed(self.seed, j) for j in range(self.count)]
        with self._active(list(found.values())) as network:

            def logits(output: Any, members: int = 1) -> Tensor:
                out = checked(output, members * len(x), axis)
                return out.reshape(members, len(x), *out.shape[1:])

            def whole(j: int) -> Tensor:
                with untouched(x):
                    block = logits(self._seeded(network, seeds[j])(x))
                self._doubt(block)
                return block

            def grouped(split: Split, shared: Any, group: Sequence[int]) -> Tensor:
                return logits(split.members(shared, len(x), group, self._generators()), len(group))

            split = self._split(x, found)
            shared = None if split is None else split.shared(self.model, x)
            size = 0 if split is None else self._trusted(split, x, seeds, whole, partial(grouped, split, shared))
            if split is None or not size:
                yield from map(whole, range(self.count))
                return
            for start in range(0, self.count, size):
                yield grouped(split, shared, seeds[start : start + size])

    def _split(self, x: Tensor, found: dict[str, nn.Module]) -> Split | None:
        """The network's graph for this batch; None where members are run whole."""
        work = self.count * len(x) * math.prod(x.shape[2:]) * sum(p.numel() for p in self.model.parameters())
        shares = self.count > 1 and len(x) > 0 and any(rate(m, self.p) > 0 for m in found.values())
        if not shares or (work < SMALL and self.together is None):
            return None
        key = (settings_of(self.model), x.shape[1:], x.stride()[1:], x.dtype, x.device)
        known = self._splits.setdefault(key, {})
        split = next((s for s in known.values() if s is not None and s.takes(len(x))), None)
        if split is None and len(x) not in known:
            try:
                if sum(map(len, self._splits.values())) >= MOST_GRAPHS:
                    raise NoGraph(f"its batches have more than {MOST_GRAPHS} shapes")
                copy = twin(self.model)
                with dropping([copy.get_submodule(name) for name in found], self.p):
                    split = Split(export(copy, x), len(x))
            except NoGraph as why:
                self._run_whole(why)
            known[len(x)] = split
        return None if split is None or False in split.trusted.values() else split

    def _trusted(
        self,
        split: Split,
        x: Tensor,
        seeds: Sequence[int],
        whole: Callable[[int], Tensor],
        grouped: Callable[[Sequence[int]], Tensor],
    ) -> int:
        """How many members to stack; none where the graph does not give the logits that the network gives."""
        size = split.group(x, self.count, self.together)
        if (size > 1) not in split.trusted:
            half = split.half or torch.is_autocast_enabled(x.device.type)  # its logits may be wider
            split.trusted[size > 1] = agrees(whole(size // 2)[0], grouped(seeds[:size])[size // 2], half=half)
        if split.trusted[size > 1]:
            return size
        self._run_whole("its graph gives other numbers than its code")
        return 0

    def _run_whole(self, why: object) -> None:
        if "whole" not in self._seen:
            self._seen.add("whole")
            warn(f"MC dropout runs {type(self.model).__name__} whole for every member: {why}")

    def _doubt(self, block: Tensor) -> None:
        """Say once that a network returns probabilities; after pooling this can no longer be seen."""
        if "probabilities" not in self._seen and look_like_probabilities(block, binary=False):
            warn_of_probabilities(f"{type(self.model).__name__}: ")
        self._seen.add("probabilities")

    def _devices(self) -> list[torch.device]:
        return sorted({t.device for t in self.model.parameters() if t.device.type == "cuda"}, key=str)

    def _generators(self) -> list[torch.Generator]:
        return [torch.default_generator, *(torch.cuda.default_generators[d.index or 0] for d in self._devices())]

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        with self._active(list(chosen(self.model, self.where).values())) as network:
            yield self._seeded(network, member_seed(self.seed, j))

    def _seeded(self, network: Network, seed: int) -> Network:
        def seeded(*args: Any, **kwargs: Any) -> Any:
            for generator in self._generators():  # at every call: a batch's masks do not depend on earlier batches
                generator.manual_seed(seed)
            if "functional" not in self._seen:
                return self._reporting(network, *args, **kwargs)
            return network(*args, **kwargs)

        return seeded

    def _reporting(self, network: Network, *args: Any, **kwargs: Any) -> Any:
        """The first pass of all, looking for dropout that is not a module's."""
        self._seen.add("functional")
        if compiled(self.model):  # nothing can be seen there
            return network(*args, **kwargs)
        with Watch(self.model) as watch:
            output = network(*args, **kwargs)
        if watch.found:
            warn(
                f"{type(self.model).__name__} calls a functional dropout {watch.found} time(s) per pass, which MC "
                "dropout cannot reach: it stays as the forward pass has it; use nn.Dropout there"
            )
        return output

    @contextmanager
    def _active(self, found: Sequence[nn.Module]) -> Iterator[Network]:
        """These dropouts on, everything else in eval mode, the global generators put back afterwards."""
        fork = torch.random.fork_rng(devices=self._devices())
        with evaluating(self.model) as network, fork, dropping(found, self.p):
            yield network


__all__ = ["Insertion", "MCDropout", "WithDropout", "dropouts", "functional_dropouts", "insert"]
