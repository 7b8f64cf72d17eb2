"""BlurPool (Zhang 2019): blur, then subsample. What SS App. F compares with: a local mean against aliasing, no Prob.

    max pool of stride s          → the pool at stride 1, then BlurPool
    convolution of stride s       → the convolution at stride 1, its norm and ReLU, then BlurPool
                                    (where no ReLU follows, as in a shortcut, right after it)
    BlurPool(x)[p] = Blur(x)[s·p],  Blur with k ⊗ kᵀ / ‖k‖₁² as in SS Eq. 8

`blurpool(model)` does so in anyone's network and leaves names and weights alone; `unblurpool` undoes it. Average pools
average already and are left as they are. With the kernel (1,) the network computes what it computed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.nn.blur import Padding, check_map
from calibrant.nn.insertion import Inserted, Side, copied, insert, inserted, take_out
from calibrant.nn.operations import ACTIVATIONS, CONVOLUTIONS, COPIES, NORMS
from calibrant.nn.smoothing import Blur
from calibrant.nn.surgery import convolutions, names_in, trace
from calibrant.nn.tracing import Call, Operation, Trace

Network = TypeVar("Network", bound=nn.Module)

STRIDED = (nn.modules.conv._ConvNd, nn.modules.pooling._MaxPoolNd)


class BlurPool(nn.Module):
    """Average over neighbours at every `stride`-th point."""

    def __init__(
        self,
        stride: int | Sequence[int] = 2,
        kernel: Sequence[float] | str = (1, 2, 1),
        padding: Padding = "reflect",
        axes: int = 2,
    ) -> None:
        super().__init__()
        self.blur = Blur(kernel, padding, axes)
        self.stride = (int(stride),) * axes if isinstance(stride, int) else tuple(int(s) for s in stride)
        if len(self.stride) != axes or min(self.stride) < 1:
            raise InputError(f"stride={stride} must be {axes} whole numbers of 1 or more")

    def forward(self, x: Tensor) -> Tensor:
        every: tuple[Any, ...] = (..., *(slice(None, None, stride) for stride in self.stride))
        return self.blur.forward(x)[every]  # not as a module: torch.fx could not name one that is in a hook

    def extra_repr(self) -> str:
        return f"stride={self.stride}"


class Subsampled(Inserted):
    """The hook, which remembers the layer whose stride it took over."""

    def __init__(self, layer: BlurPool, name: str, side: Side, strided: str, stride: Any) -> None:
        super().__init__(layer, name, side)
        self.strided, self.stride = strided, stride


def blurpool(
    model: Network,
    where: str | Sequence[str] | None = None,
    *,
    kernel: Sequence[float] | str = (1, 2, 1),
    padding: Padding = "reflect",
    example: Any = None,
    inplace: bool = False,
) -> Network:
    """A copy of `model` whose strided convolutions and max pools (or those named by `where`) are anti-aliased."""
    if blurpooled(model):
        raise InputError("this model already has BlurPool layers; take them out with unblurpool(model) first")
    if not convolutions(model):
        raise InputError(f"{type(model).__name__} has no convolution, so nothing that subsamples a map")
    run = trace(model, example)
    found = {name: op for op in run.operations if op.subsamples and (name := _strided(model, run, op))}
    chosen = list(found) if where is None else names_in(where, "names of strided convolutions and max pools")
    if wrong := [name for name in chosen if name not in found]:
        raise InputError(
            f"{wrong[0]!r} is not a strided convolution or max pool; there are {', '.join(found) or 'none'}"
        )
    if not chosen:
        raise InputError(f"{type(model).__name__} has no strided convolution or max pool to anti-alias")
    layers = [_layer(model, run, name, found[name], kernel, padding) for name in chosen]
    target = model if inplace else copied(model)
    for name, layer in zip(chosen, layers, strict=True):
        strided: Any = target.get_submodule(name)
        side, at = _place(run, found[name]) if found[name].name in CONVOLUTIONS else ("after", name)
        hook = Subsampled(layer, at, side, name, strided.stride)
        strided.stride = (1,) * len(strided.stride) if isinstance(strided.stride, tuple) else 1
        insert(target, hook)
    return target


def _layer(
    model: nn.Module, run: Trace, name: str, op: Operation, kernel: Sequence[float] | str, padding: Padding
) -> BlurPool:
    strided: Any = model.get_submodule(name)
    layer = BlurPool(strided.stride, kernel, padding, op.axes)
    try:
        check_map((1, 1, *_dense(run, op, strided)), len(layer.blur.taps), op.axes)
    except InputError as error:
        raise InputError(f"{name}: {error}, or leave it out of where=") from None
    return layer


def blurpooled(model: nn.Module) -> dict[str, BlurPool]:
    """What was inserted: "before NAME" or "after NAME" → the layer."""
    return {f"{hook.side} {name}": hook.layer for name, _, hook in inserted(model, Subsampled)}


def unblurpool(model: Network) -> Network:
    """Takes every BlurPool out and gives the strides back, in place; the network is what it was."""
    for _, module, hook in inserted(model, Subsampled):
        strided: Any = model.get_submodule(hook.strided)
        strided.stride = hook.stride
        take_out(module, hook)
    return model


def _strided(model: nn.Module, run: Trace, op: Operation) -> str:
    """The name of the strided layer that this operation is; "" of what is none (average pools, resizing)."""
    name = run.calls[op.inside[-1]].name if op.inside else ""
    module: Any = model.get_submodule(name)
    if isinstance(module, STRIDED):
        if getattr(module, "ceil_mode", False):
            raise InputError(f"{name}: a pool with ceil_mode=True has no BlurPool; set it to False")
        return name
    if op.name in CONVOLUTIONS or op.name.startswith("max_pool"):
        raise InputError(f"{op.name} in {name or 'the forward pass'} subsamples as a function; make it a module")
    return ""


def _dense(run: Trace, op: Operation, strided: Any) -> tuple[int, ...]:
    """The size of what the layer gives at stride 1."""

    def each(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple) else (0 if value == "valid" else int(value),) * op.axes

    settings = (each(getattr(strided, name)) for name in ("kernel_size", "padding", "dilation"))
    sizes = zip(run.shapes[op.reads[0]][-op.axes :], *settings, strict=True)
    return tuple(n + 2 * padding - dilation * (size - 1) for n, size, padding, dilation in sizes)


def _place(run: Trace, op: Operation) -> tuple[Side, str]:
    """Behind the ReLU that a convolution's output goes through, if that is all; else right behind the convolution."""
    number, strided = op.writes[0], run.calls[op.inside[-1]].name
    while True:
        readers = [o for o in run.operations if number in o.reads]
        if len(readers) != 1 or readers[0].name not in NORMS | COPIES | ACTIVATIONS:
            return "after", strided
        (following,) = readers
        number = following.writes[0]
        if following.name in ACTIVATIONS:
            return _beside(run, following, number) or ("after", strided)


def _beside(run: Trace, op: Operation, number: int) -> tuple[Side, str] | None:
    """The module that gave this map, if it is called once; else the one that takes it (a ReLU may serve twice)."""
    names = [c.name for c in run.calls]

    def once(calls: list[Call]) -> str | None:
        return next((c.name for c in calls if names.count(c.name) == 1), None)

    own = run.calls[op.inside[-1]] if op.inside else None
    if own is not None and own.gave == number and (giver := once([own])):
        return "after", giver
    taker = once([c for c in run.calls if c.took == number])
    return ("before", taker) if taker else None
