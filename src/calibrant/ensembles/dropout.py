"""MC dropout (Gal & Ghahramani 2016): dropout stays active at test time, M masks, averaged.

Works on any model that has dropout *modules* (`dropping.py` says which); a functional `F.dropout(…,
training=self.training)` cannot be reached from outside, and the first pass warns of it. `insert` puts dropout
where a model has none, and can be undone. Masks are drawn inside a guarded scope from (seed, member): the
global generators are left as found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.ensembles.dropping import (
    Watch,
    Where,
    check_rates,
    chosen,
    dropouts,
    dropping,
    functional_dropouts,
    rate,
)
from calibrant.ensembles.ensemble import Ensemble, LogMean, Network, evaluating, positive
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.passes import Passes
from calibrant.ensembles.single import predict, reading
from calibrant.errors import InputError, warn
from calibrant.functional.noise import member_seed
from calibrant.functional.segmentation import classes_back
from calibrant.nn.insertion import apart
from calibrant.types import Predictions


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
        where = None if where is None else tuple(found)  # a choice is one ensemble, however it is said
        if p is not None:
            check_rates(found)
        values = {"model": model, "count": members, "p": p, "seed": seed, "together": together, "where": where}
        values["_seen"] = set()
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def build(cls, given: Ingredients) -> MCDropout:
        return cls(given.network("dropout"), given.members or 50, given.p, given.seed, where=given.where)

    @property
    def size(self) -> int:
        return self.count

    @torch.no_grad()
    def members(self, x: Tensor, *, class_axis: int | None = None) -> Tensor:
        axis = self.axis(class_axis)
        with closing(self._stream(x, axis)) as stream:
            return torch.stack([classes_back(logits, axis) for block in stream for logits in block])

    @torch.no_grad()
    def __call__(self, *inputs: Any, class_axis: int | None = None, **named: Any) -> Tensor:
        axis, pooled = self.axis(class_axis), LogMean()
        if named or len(inputs) != 1 or not isinstance(inputs[0], Tensor):  # several: nothing is shared between members
            for j in range(self.count):
                with self.member(j) as network:
                    pooled.add(reading(network, axis)(*inputs, **named))
            return classes_back(pooled.value(), axis)
        (x,) = inputs
        with closing(self._stream(x, axis)) as stream:
            for logits in stream:
                pooled.extend(logits)
        return classes_back(pooled.value(), axis)

    def predict(self, loader: Iterable[Any], *, keep_members: bool = False, **options: Any) -> Predictions:
        """As for every ensemble; pooled predictions go batch by batch, to share what precedes the dropout."""
        if keep_members:
            return super().predict(loader, keep_members=True, **options)
        options = {"device": self.home, **{k: v for k, v in options.items() if v is not None}}
        return replace(predict(self, loader, **options), raw=False)

    def _stream(self, x: Tensor, axis: int | None) -> Generator[Tensor, None, None]:
        """Members in order on one batch, blocks of [G, N, …, K]; what precedes the first active dropout runs once."""
        found, devices = list(chosen(self.model, self.where).values()), self._devices()
        active = [m for m in found if rate(m, self.p) > 0]
        seeds = [member_seed(self.seed, j) for j in range(self.count)]
        with self._active(found, devices) as network:

            def call(j: int, x: Tensor) -> Any:
                return self._seeded(network, seeds[j], devices)(x)

            passes = Passes(self.model, x, active, call, axis)
            if self.count == 1 or not active:
                yield from (passes.whole(j)[None] for j in range(self.count))
            else:
                yield from passes.stream(network, seeds, devices, self.together)

    def _devices(self) -> list[torch.device]:
        return sorted({t.device for t in self.model.parameters() if t.device.type == "cuda"}, key=str)

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        found, devices = list(chosen(self.model, self.where).values()), self._devices()
        with self._active(found, devices) as network:
            yield self._seeded(network, member_seed(self.seed, j), devices)

    def _seeded(self, network: Network, seed: int, devices: Sequence[torch.device]) -> Network:
        def seeded(*args: Any, **kwargs: Any) -> Any:
            # at every call, so that a batch's masks do not depend on the batches before it
            for generator in (torch.default_generator, *(torch.cuda.default_generators[d.index or 0] for d in devices)):
                generator.manual_seed(seed)
            if "functional" not in self._seen:
                return self._reporting(network, *args, **kwargs)
            return network(*args, **kwargs)

        return seeded

    def _reporting(self, network: Network, *args: Any, **kwargs: Any) -> Any:
        """The first pass of all, with an eye on dropout that is not a module's."""
        self._seen.add("functional")
        if any(type(m).__name__ == "OptimizedModule" for m in self.model.modules()):  # compiled: nothing to be seen
            return network(*args, **kwargs)
        with Watch(self.model) as watch:
            output = network(*args, **kwargs)
        if watch.found:
            warn(
                f"{type(self.model).__name__} calls a functional dropout {watch.found} time(s) a pass, which MC "
                "dropout cannot reach: it stays as the forward pass has it; use nn.Dropout there"
            )
        return output

    @contextmanager
    def _active(self, found: Sequence[nn.Module], devices: Sequence[torch.device]) -> Iterator[Network]:
        """These dropouts on, everything else in eval mode, the global generators put back afterwards."""
        fork = torch.random.fork_rng(devices=devices)
        with evaluating(self.model) as network, fork, dropping(found, self.p):
            yield network


@dataclass(frozen=True)
class Insertion:
    """Dropout put after chosen modules; `undo()` takes exactly it out again."""

    model: nn.Module
    names: tuple[str, ...]

    def undo(self) -> nn.Module:
        for name in self.names:
            parent, key = _parent(self.model, name)
            wrapped = parent._modules[key]
            assert isinstance(wrapped, WithDropout), f"{name} is no longer what was inserted"
            parent._modules[key] = wrapped.inner
        return self.model


class WithDropout(nn.Module):
    """A module, then dropout."""

    def __init__(self, inner: nn.Module, p: float) -> None:
        super().__init__()
        self.inner = inner
        self.dropout = nn.Dropout(p)
        self.train(inner.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.dropout(self.inner(*args, **kwargs))


def insert(model: nn.Module, p: float, where: Callable[[str, nn.Module], bool] | None = None) -> Insertion:
    """Put dropout after every module that `where(name, module)` picks (default: each activation), in place."""
    if not 0 < p < 1:
        raise InputError(f"p={p} must be between 0 and 1")
    activations = (nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Hardswish, nn.ELU, nn.Tanh)
    pick = where or (lambda _, m: isinstance(m, activations))
    # one module may stand in several places, and a place may have several names: every place once
    named = model.named_modules(remove_duplicate=False)
    chosen = list({_parent(model, n): n for n, m in named if n and pick(n, m)}.values())
    if not chosen:
        raise InputError("no module to insert dropout after; pass where=(name, module) -> bool")
    apart(model)  # what smooths a map smooths it after dropout
    for name in reversed(chosen):  # inner ones first, so that a name stays valid
        parent, key = _parent(model, name)
        inner = parent._modules[key]
        assert inner is not None
        parent._modules[key] = WithDropout(inner, p)
    return Insertion(model, tuple(chosen))


def _parent(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, key = name.rpartition(".")
    return model.get_submodule(path), key


__all__ = ["Insertion", "MCDropout", "WithDropout", "dropouts", "functional_dropouts", "insert"]
