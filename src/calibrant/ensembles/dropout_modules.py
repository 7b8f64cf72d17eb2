"""Find, switch on, count and insert the dropout of a network.

MC dropout reaches PyTorch's dropout modules, those of other libraries (known by their names), and modules that call
dropout themselves and use their mode for nothing else: attention (`nn.MultiheadAttention`) and recurrent networks
(`nn.LSTM(…, dropout=0.3)`). It reaches neither a functional `F.dropout(…, training=self.training)` in a forward method
nor the `dropout_p` of `F.scaled_dot_product_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from calibrant.ensembles.ensemble import evaluating, module
from calibrant.errors import InputError
from calibrant.nn.surgery import check_predicate, unique_names

Where = str | Sequence[str] | Callable[[str, nn.Module], bool] | None
_PLAIN = nn.modules.dropout._DropoutNd
_COMPOSED = (nn.MultiheadAttention, nn.RNNBase)  # their rate is the attribute `dropout`
_NAMES = ("DropPath", "StochasticDepth", "DropBlock", "DropBlock2d")  # modules of other libraries
_RATES = ("p", "drop_prob", "drop_p", "rate")
_FUNCTIONS = {getattr(nn.functional, n) for n in dir(nn.functional) if "dropout" in n} | {torch.dropout}


def dropouts(model: nn.Module) -> dict[str, nn.Module]:
    """Return every module that drops, by name. Dropout modules with p = 0 are included."""
    return {name: m for name, m in module(model).named_modules() if _drops(m)}


def select(model: nn.Module, where: Where) -> dict[str, nn.Module]:
    """Return the dropouts that `where` selects: all of them (None), those that have one of its names or are inside such
    a module, or those for which `where(name, module)` is true."""
    found = dropouts(model)
    if where is None:
        return found
    if callable(where):
        check_predicate(where)
        picked = {name: m for name, m in found.items() if where(name, m)}
    else:
        names = unique_names(where, "dropouts' names, or where(name, module) -> bool")
        for name in names:
            if not any(_within(one, name) for one in found):
                raise InputError(f"where={name!r} names no dropout of {type(model).__name__}; it has {_listed(found)}")
        picked = {one: m for one, m in found.items() if any(_within(one, name) for name in names)}
    if found and not picked:
        raise InputError(f"where picks no dropout of {type(model).__name__}; it has {_listed(found)}")
    return picked


def _within(name: str, of: str) -> bool:
    return name == of or name.startswith(f"{of}.")


def _listed(found: dict[str, nn.Module], most: int = 8) -> str:
    names = list(found)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _drops(m: nn.Module) -> bool:
    if isinstance(m, _COMPOSED):
        return m.dropout > 0
    name = type(m).__name__
    leaf = not m._modules and not m._parameters
    return isinstance(m, _PLAIN) or (leaf and (name in _NAMES or "dropout" in name.lower()))


def _attribute(m: nn.Module) -> str | None:
    """Return the name of the attribute that holds a module's rate, or None if it is unknown."""
    if isinstance(m, _COMPOSED):
        return "dropout"
    return next((a for a in _RATES if isinstance(getattr(m, a, None), (int, float))), None)


def rate(m: nn.Module, p: float | None = None) -> float:
    """Return the rate of a module, or `p` if given; 1 if its rate is unknown."""
    name = _attribute(m)
    if name is None:
        return 1.0
    return float(getattr(m, name) if p is None else p)


def check_rates(found: dict[str, nn.Module]) -> None:
    """Refuse modules whose rate is unknown, because `p` could not override it."""
    for name, m in found.items():
        if _attribute(m) is None:
            raise InputError(
                f"{name} ({type(m).__name__}) keeps its rate in an unknown place; set it there instead of p="
            )


@contextmanager
def active(found: Sequence[nn.Module], p: float | None) -> Iterator[None]:
    """Switch on these dropouts of a model in eval mode, at the rate `p` if one is given."""
    rates = [(m, a, getattr(m, a)) for m in found if p is not None and (a := _attribute(m)) is not None]
    with ExitStack() as scopes:
        if any(rate(m, p) > 0 for m in found):
            scopes.enter_context(_unfused(found))
        try:
            for m in found:
                m.training = True
            for m, name, _ in rates:
                setattr(m, name, p)
            yield
        finally:
            for m, name, own in rates:
                setattr(m, name, own)
            for m in found:
                m.training = False


@contextmanager
def _unfused(found: Iterable[nn.Module]) -> Iterator[None]:
    """Switch off fused kernels that skip dropout, or whose masks do not follow the seed.

    In eval mode an `nn.TransformerEncoderLayer` uses one fused kernel, which bypasses its own dropout modules. cuDNN's
    recurrent kernels keep their own state for the masks.
    """
    cudnn, mha = torch.backends.cudnn, torch.backends.mha
    recurrent, enabled, fused = any(isinstance(m, nn.RNNBase) for m in found), cudnn.enabled, mha.get_fastpath_enabled()
    try:
        mha.set_fastpath_enabled(False)
        if recurrent:  # `cudnn.flags` would also reset the user's other flags, and fails if only some layers have TF32
            cudnn.enabled = False
        yield
    finally:
        mha.set_fastpath_enabled(fused)
        if recurrent:
            cudnn.enabled = enabled


class FunctionalDropouts(TorchFunctionMode):
    """Counts the dropout calls of one pass that come from no module of `dropouts`: MC dropout cannot switch them on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found = self._inside = 0
        self._modules = dropouts(model).values()
        self._hooks: list[Any] = []

    def __enter__(self) -> FunctionalDropouts:
        for m in self._modules:
            self._hooks.append(m.register_forward_pre_hook(lambda *_: self._enter(1)))
            self._hooks.append(m.register_forward_hook(lambda *_: self._enter(-1), always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _enter(self, levels: int) -> None:
        self._inside += levels

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        drops = func in _FUNCTIONS
        if func is nn.functional.scaled_dot_product_attention:
            drops = bool(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0))
        self.found += drops and not self._inside
        return func(*args, **kwargs)


def functional_dropouts(model: nn.Module, x: Tensor) -> int:
    """Return how many dropout calls of one forward pass come from no module, so MC dropout cannot switch them on."""
    with torch.no_grad(), evaluating(model), FunctionalDropouts(model) as calls:
        model(x)
    return calls.found


@dataclass(frozen=True)
class Insertion:
    """The dropout that `insert` added; `undo()` removes it again."""

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
    """A module followed by dropout."""

    def __init__(self, inner: nn.Module, p: float) -> None:
        super().__init__()
        self.inner = inner
        self.dropout = nn.Dropout(p)
        self.train(inner.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.dropout(self.inner(*args, **kwargs))


def insert(model: nn.Module, p: float, where: Callable[[str, nn.Module], bool] | None = None) -> Insertion:
    """Add dropout in place after every module that `where(name, module)` selects (default: each activation)."""
    if not 0 < p < 1:
        raise InputError(f"p={p} must be between 0 and 1")
    activations = (nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Hardswish, nn.ELU, nn.Tanh)
    pick = where or (lambda _, m: isinstance(m, activations))
    # A module may be in several places, and a place may have several names; each place is used once.
    named = model.named_modules(remove_duplicate=False)
    places = list({_parent(model, n): n for n, m in named if n and pick(n, m)}.values())
    if not places:
        raise InputError("no module to insert dropout after; pass where=(name, module) -> bool")
    for name in reversed(places):  # inner places first, so that the remaining names stay valid
        parent, key = _parent(model, name)
        inner = parent._modules[key]
        assert inner is not None
        parent._modules[key] = WithDropout(inner, p)
    return Insertion(model, tuple(places))


def _parent(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, key = name.rpartition(".")
    return model.get_submodule(path), key
