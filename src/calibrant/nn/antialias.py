"""BlurPool (Zhang 2019): blur, then subsample. SS App. F compares it with smoothing; it has no Prob.

    max pool of stride s          → the pool at stride 1, then BlurPool
    convolution of stride s       → the convolution at stride 1, its norm and ReLU, then BlurPool
                                    (where no ReLU follows, as in a shortcut, right after it)
    BlurPool(x)[p] = Blur(x)[s·p],  Blur with k ⊗ kᵀ / ‖k‖₁² as in SS Eq. 8

`blurpool(model)` changes any network so, without touching names and weights; `unblurpool` undoes it. Average pools
already average and stay as they are. With the kernel (1,) the outputs of the network do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.nn.blur import Padding, check_map
from calibrant.nn.insertion import Inserted, Side, deep_copy, insert, inserted, remove
from calibrant.nn.operations import ACTIVATIONS, CONVOLUTIONS, COPIES, NORMS
from calibrant.nn.smoothing import Blur
from calibrant.nn.surgery import convolutions, trace, unique_names
from calibrant.nn.tracing import Call, Operation, Trace

Network = TypeVar("Network", bound=nn.Module)

STRIDED = (nn.modules.conv._ConvNd, nn.modules.pooling._MaxPoolNd)


class BlurPool(nn.Module):
    """A blur, of which only every `stride`-th point is computed."""

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
        return self.blur.forward(x)[every]  # not called as a module, which torch.fx could not name inside a hook

    def extra_repr(self) -> str:
        return f"stride={self.stride}"


class Subsampled(Inserted):
    """The hook of a BlurPool, which remembers the layer whose stride it replaces."""

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
    """Return a copy of `model` whose strided convolutions and max pools (or those in `where`) are anti-aliased."""
    if blurpooled(model):
        raise InputError("this model already has BlurPool layers; remove them with unblurpool(model) first")
    if not convolutions(model):
        raise InputError(f"{type(model).__name__} has no convolution, so nothing that subsamples a map")
    run = trace(model, example)
    found = {name: op for op in run.operations if op.subsamples and (name := _strided(model, run, op))}
    chosen = list(found) if where is None else unique_names(where, "names of strided convolutions and max pools")
    if wrong := [name for name in chosen if name not in found]:
        raise InputError(
            f"{wrong[0]!r} is not a strided convolution or max pool; there are {', '.join(found) or 'none'}"
        )
    if not chosen:
        raise InputError(f"{type(model).__name__} has no strided convolution or max pool to anti-alias")
    layers = [_layer(model, run, name, found[name], kernel, padding) for name in chosen]
    target = model if inplace else deep_copy(model)
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
    """Return the inserted layers: "before NAME" or "after NAME" → the layer."""
    return {f"{hook.side} {name}": hook.layer for name, _, hook in inserted(model, Subsampled)}


def unblurpool(model: Network) -> Network:
    """Remove every BlurPool and restore the strides, in place."""
    for _, module, hook in inserted(model, Subsampled):
        strided: Any = model.get_submodule(hook.strided)
        strided.stride = hook.stride
        remove(module, hook)
    return model


def _strided(model: nn.Module, run: Trace, op: Operation) -> str:
    """Return the name of the strided layer of this operation, or "" if it is another kind (average pool, resizing)."""
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
    """Return the size of the layer's output at stride 1."""

    def each(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple) else (0 if value == "valid" else int(value),) * op.axes

    settings = (each(getattr(strided, name)) for name in ("kernel_size", "padding", "dilation"))
    sizes = zip(run.shapes[op.reads[0]][-op.axes :], *settings, strict=True)
    return tuple(n + 2 * padding - dilation * (size - 1) for n, size, padding, dilation in sizes)


def _place(run: Trace, op: Operation) -> tuple[Side, str]:
    """Return the place after the ReLU of a convolution, or after the convolution itself if other layers read its output
    too or no ReLU follows."""
    number, strided = op.writes[0], run.calls[op.inside[-1]].name
    while True:
        readers = [o for o in run.operations if number in o.reads]
        if len(readers) != 1 or readers[0].name not in NORMS | COPIES | ACTIVATIONS:
            return "after", strided
        (following,) = readers
        number = following.writes[0]
        if following.name in ACTIVATIONS:
            return _around(run, following, number) or ("after", strided)


def _around(run: Trace, op: Operation, number: int) -> tuple[Side, str] | None:
    """Return the place after the module that returned this map, or before a module that takes it. The module must be
    called once; a ReLU may be called several times."""
    names = [c.name for c in run.calls]

    def once(calls: list[Call]) -> str | None:
        return next((c.name for c in calls if names.count(c.name) == 1), None)

    own = run.calls[op.inside[-1]] if op.inside else None
    if own is not None and own.gave == number and (giver := once([own])):
        return "after", giver
    taker = once([c for c in run.calls if c.took == number])
    return ("before", taker) if taker else None
