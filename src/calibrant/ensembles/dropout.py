"""MC dropout (Gal & Ghahramani 2016): dropout stays active at test time, M masks, averaged.

Works on any model that has dropout *modules*; a functional `F.dropout(…, training=self.training)` cannot
be reached from outside and is reported. `insert` puts dropout where a model has none, and can be undone.
Masks are drawn inside a guarded scope from (seed, member): the global generators are left as found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from calibrant.ensembles.ensemble import Ensemble, LogMean, Network, checked, evaluating
from calibrant.ensembles.replay import Diverged, Tape, shared
from calibrant.ensembles.side_by_side import agrees, side_by_side, together
from calibrant.ensembles.single import predict
from calibrant.errors import InputError
from calibrant.functional.noise import member_seed
from calibrant.types import Predictions

_DROPOUT = nn.modules.dropout._DropoutNd
_NAMES = ("DropPath", "StochasticDepth", "DropBlock2d")  # other libraries' modules, known by name
_FUNCTIONS = {getattr(torch.nn.functional, n) for n in dir(torch.nn.functional) if "dropout" in n} | {torch.dropout}


def dropouts(model: nn.Module) -> dict[str, nn.Module]:
    """Every dropout module by name, whatever its kind; those with p = 0 included."""
    return {name: m for name, m in model.named_modules() if isinstance(m, _DROPOUT) or type(m).__name__ in _NAMES}


def functional_dropouts(model: nn.Module, x: Tensor) -> int:
    """How many dropout calls of one forward pass come from no module, and so stay off."""
    inside = 0
    found = 0

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal found
            found += func in _FUNCTIONS and not inside
            return func(*args, **(kwargs or {}))

    def enter(*_: Any) -> None:
        nonlocal inside
        inside += 1

    def leave(*_: Any) -> None:
        nonlocal inside
        inside -= 1

    hooks = [m.register_forward_pre_hook(enter) for m in dropouts(model).values()]
    hooks += [m.register_forward_hook(leave) for m in dropouts(model).values()]
    try:
        with torch.no_grad(), evaluating(model), Watch():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


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
        for name, value in {"model": model, "count": members, "p": p, "seed": seed, "together": together}.items():
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
        if self.count == 1:
            yield self._run(0, x)
            return
        tape = Tape(x)
        active = [m for m in dropouts(self.model).values() if self._rate(m) > 0]
        first = self._replayed(0, x, tape, active)
        free = torch.cuda.mem_get_info(x.device)[0] if x.is_cuda else None
        group = self.together or together(self.count, tape.widest, tape.idle, free)
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

    def _rate(self, module: nn.Module) -> float:
        own = getattr(module, "p", getattr(module, "drop_prob", 1.0))
        return float(own if self.p is None or not isinstance(module, _DROPOUT) else self.p)

    def _devices(self) -> list[torch.device]:
        return sorted({t.device for t in self.model.parameters() if t.device.type == "cuda"}, key=str)

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        with self._active() as network:

            def seeded(*args: Any, **kwargs: Any) -> Any:
                # at every call, so that a batch's masks do not depend on the batches before it
                torch.manual_seed(member_seed(self.seed, j))
                return network(*args, **kwargs)

            yield seeded

    @contextmanager
    def _active(self) -> Iterator[Network]:
        """Every dropout on, everything else in eval mode, the global generators put back afterwards."""
        found = dropouts(self.model).values()
        rates: list[tuple[Any, float]] = [(m, float(m.p)) for m in found if isinstance(m, _DROPOUT)]
        with evaluating(self.model) as network, torch.random.fork_rng(devices=self._devices()):
            try:
                for m in found:
                    m.training = True
                if self.p is not None:
                    for m, _ in rates:
                        m.p = self.p
                yield network
            finally:
                for m, rate in rates:
                    m.p = rate
                for m in found:
                    m.training = False  # `evaluating` puts each one's own flag back after this


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
