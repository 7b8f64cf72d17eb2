"""MC dropout (Gal & Ghahramani 2016): dropout stays active at test time, M masks, averaged.

Works on any model that has dropout *modules* (`dropping.py` says which); a functional `F.dropout(…,
training=self.training)` cannot be reached from outside, and the first pass warns of it. `insert` puts dropout
where a model has none, and can be undone. Masks are drawn inside a guarded scope from (seed, member): the
global generators are left as found.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.ensembles.dropping import Watch, check_rates, dropouts, dropping, functional_dropouts, rate, splits
from calibrant.ensembles.ensemble import Ensemble, LogMean, Network, checked, evaluating
from calibrant.ensembles.replay import Diverged, Tape, shared
from calibrant.ensembles.side_by_side import agrees, side_by_side, together
from calibrant.ensembles.single import predict
from calibrant.errors import InputError
from calibrant.functional.noise import member_seed
from calibrant.types import Predictions


@dataclass(frozen=True, eq=False)
class MCDropout(Ensemble):
    """M passes with dropout active and everything else in eval mode. `p` overrides every rate.

    `together` members run as one batch (by default one on a CPU, and on a GPU as many as fill it): the masks stay
    the same, the logits agree to rounding.
    """

    model: nn.Module
    count: int = 50
    p: float | None = None
    seed: int = 0
    together: int | None = None
    _seen: set[str] = field(default_factory=set, init=False, repr=False)  # what was reported already

    def __init__(
        self,
        model: nn.Module,
        members: int = 50,
        p: float | None = None,
        seed: int = 0,
        together: int | None = None,
    ) -> None:
        if together is not None and together < 1:
            raise InputError(f"together={together} must be at least 1")
        if members < 1:
            raise InputError(f"members={members} must be at least 1")
        if p is not None and not 0 <= p < 1:
            raise InputError(f"p={p} must be in [0, 1)")
        if not dropouts(model):
            raise InputError(
                f"{type(model).__name__} has no dropout module (a functional F.dropout is not reachable); "
                "insert some with calibrant.ensembles.dropout.insert(model, p)"
            )
        if p is not None:
            check_rates(dropouts(model))
        values = {"model": model, "count": members, "p": p, "seed": seed, "together": together, "_seen": set()}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        return self.count

    @torch.no_grad()
    def members(self, x: Tensor) -> Tensor:
        return torch.stack(list(self._stream(x)))

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        pooled = LogMean()
        for logits in self._stream(x):
            pooled.add(logits)
        return pooled.value()

    def predict(self, loader: Iterable[Any], *, keep_members: bool = False, **options: Any) -> Predictions:
        """As for every ensemble; pooled predictions go batch by batch, to share what precedes the dropout."""
        if keep_members:
            return super().predict(loader, keep_members=True, **options)
        options = {"device": self.home, **{k: v for k, v in options.items() if v is not None}}
        return replace(predict(self, loader, **options), raw=False)

    def _stream(self, x: Tensor) -> Iterator[Tensor]:
        """Member after member on one batch; what precedes the first active dropout runs once."""
        active = [m for m in dropouts(self.model).values() if rate(m, self.p) > 0]
        if self.count == 1 or not active:
            yield from (self._run(j, x) for j in range(self.count))
            return
        tape = Tape(x)
        first = self._replayed(0, x, tape, active)
        free = torch.cuda.mem_get_info(x.device)[0] if x.is_cuda else None
        group = self.together or together(self.count, tape.widest, tape.idle, free)
        if not all(map(splits, active)):
            group = 1
        if group == 1 and not x.is_cuda and not tape.pays:
            yield first.clone()
            yield from (self._run(j, x) for j in range(1, self.count))
            return
        batched = self._grouped(0, group, x, tape, active) if group > 1 else None
        if batched is None or not agrees(first, batched[0]):  # items that see each other: member after member
            group, batched = 1, first[None]
        yield first.clone()
        yield from batched[1:]
        for start in range(group, self.count, group):
            if group > 1 and (more := self._grouped(start, group, x, tape, active)) is not None:
                yield from more
                continue
            yield from (self._replayed(j, x, tape, active) for j in range(start, min(start + group, self.count)))

    def _replayed(self, j: int, x: Tensor, tape: Tape, active: list[nn.Module]) -> Tensor:
        """Member j alone: the naive loop's numbers bit for bit."""
        try:
            with self.member(j) as network, shared(tape, active):
                logits = tape.keep(checked(network(x), len(x)))
            return logits.clone()  # without an active dropout the tape holds the logits itself
        except Diverged:  # a network whose operations differ from pass to pass: run it whole
            return self._run(j, x)

    def _grouped(self, start: int, size: int, x: Tensor, tape: Tape, active: list[nn.Module]) -> Tensor | None:
        """Members start … start + size − 1 as one batch, [G, N, K]; None where the network does not allow it."""
        js = range(start, min(start + size, self.count))
        seeds, tiled = [member_seed(self.seed, j) for j in js], torch.cat([x] * len(js))
        with self._active() as network, side_by_side(active, seeds, self._devices()):
            try:
                with shared(tape, active, copies=len(js)):
                    whole = network(tiled)
                return checked(whole, len(js) * len(x)).reshape(len(js), len(x), -1)
            except (RuntimeError, InputError):  # other shapes, other operations, or no memory for a batch so large
                return None

    def _devices(self) -> list[torch.device]:
        return sorted({t.device for t in self.model.parameters() if t.device.type == "cuda"}, key=str)

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        with self._active() as network:

            def seeded(*args: Any, **kwargs: Any) -> Any:
                # at every call, so that a batch's masks do not depend on the batches before it
                torch.manual_seed(member_seed(self.seed, j))
                if "functional" not in self._seen:
                    return self._reporting(network, *args, **kwargs)
                return network(*args, **kwargs)

            yield seeded

    def _reporting(self, network: Network, *args: Any, **kwargs: Any) -> Any:
        """The first pass of all, with an eye on dropout that is not a module's."""
        self._seen.add("functional")
        if any(type(m).__name__ == "OptimizedModule" for m in self.model.modules()):  # compiled: nothing to be seen
            return network(*args, **kwargs)
        with Watch(self.model) as watch:
            output = network(*args, **kwargs)
        if watch.found:
            warnings.warn(
                f"{type(self.model).__name__} calls a functional dropout {watch.found} time(s) a pass, which MC "
                "dropout cannot reach: it stays as the forward pass has it; use nn.Dropout there",
                stacklevel=2,
            )
        return output

    @contextmanager
    def _active(self) -> Iterator[Network]:
        """Every dropout on, everything else in eval mode, the global generators put back afterwards."""
        fork = torch.random.fork_rng(devices=self._devices())
        with evaluating(self.model) as network, fork, dropping(self.model, self.p):
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
    chosen = [n for n, m in model.named_modules() if n and pick(n, m)]
    if not chosen:
        raise InputError("no module to insert dropout after; pass where=(name, module) -> bool")
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
