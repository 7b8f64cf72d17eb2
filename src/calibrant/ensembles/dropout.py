"""MC dropout (Gal & Ghahramani 2016): dropout stays active at test time, M masks, averaged.

Works on any model that has dropout *modules*; a functional `F.dropout(…, training=self.training)` cannot
be reached from outside and is reported. `insert` puts dropout where a model has none, and can be undone.
Masks are drawn inside a guarded scope from (seed, member): the global generators are left as found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from calibrant.ensembles.ensemble import Ensemble, LogMean, Network, checked, evaluating
from calibrant.ensembles.replay import Diverged, Tape, shared
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
    """M passes with dropout active and everything else in eval mode. `p` overrides every rate."""

    model: nn.Module
    count: int = 50
    p: float | None = None
    seed: int = 0

    def __init__(self, model: nn.Module, members: int = 50, p: float | None = None, seed: int = 0) -> None:
        if members < 1:
            raise InputError(f"members={members} must be at least 1")
        if p is not None and not 0 <= p < 1:
            raise InputError(f"p={p} must be in [0, 1)")
        if not dropouts(model):
            raise InputError(
                f"{type(model).__name__} has no dropout module (a functional F.dropout is not reachable); "
                "insert some with calibrant.ensembles.dropout.insert(model, p)"
            )
        for name, value in {"model": model, "count": members, "p": p, "seed": seed}.items():
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
        tape = Tape()
        active = [m for m in dropouts(self.model).values() if self._rate(m) > 0]
        replays = True
        for j in range(self.count):
            try:
                with self.member(j) as network, shared(tape, active) if replays else nullcontext():
                    logits = checked(network(x), len(x))
            except Diverged:  # a network whose operations differ from pass to pass: run it whole from here on
                replays = False
                with self.member(j) as network:
                    logits = checked(network(x), len(x))
            yield logits.clone() if tape.shared else logits  # without dropout the tape holds the logits itself

    def _rate(self, module: nn.Module) -> float:
        own = getattr(module, "p", getattr(module, "drop_prob", 1.0))
        return float(own if self.p is None or not isinstance(module, _DROPOUT) else self.p)

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        devices = {t.device for t in self.model.parameters() if t.device.type == "cuda"}
        found = dropouts(self.model).values()
        rates: list[tuple[Any, float]] = [(m, float(m.p)) for m in found if isinstance(m, _DROPOUT)]

        def seeded(*args: Any, **kwargs: Any) -> Any:
            # at every call, so that a batch's masks do not depend on the batches before it
            torch.manual_seed(member_seed(self.seed, j))
            return network(*args, **kwargs)

        with evaluating(self.model) as network, torch.random.fork_rng(devices=list(devices)):
            try:
                for m in found:
                    m.training = True
                if self.p is not None:
                    for m, _ in rates:
                        m.p = self.p
                yield seeded
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
