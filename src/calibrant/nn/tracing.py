"""One forward pass, written down: which module took and gave which tensor, and which operation read and wrote which.

Shapes alone do not tell a feature map from tokens, nor a strided layer from one without padding, and a function
(`F.max_pool2d`) is no module. So operations are recorded as torch dispatches them: what a convolution or a pool reads
is a map [N, C, …], and what it strides over is subsampling. A tensor changed in place is a new one here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CONVOLUTIONS = frozenset({"convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution"})
POOLS = frozenset({
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d",
})  # fmt: skip
RESIZES = frozenset({
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d", "upsample_trilinear3d", "pixel_unshuffle",
})  # fmt: skip
NORMS = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit_no_training", "native_group_norm", "cudnn_batch_norm"}
)
RELUS = frozenset({"relu", "relu_", "clamp_min", "clamp_min_", "hardtanh", "hardtanh_", "threshold", "threshold_"})
COPIES = frozenset({"clone", "contiguous", "_to_copy", "alias", "detach", "lift_fresh"})
VIEWS = frozenset({
    "view", "_unsafe_view", "_reshape_alias", "permute", "transpose", "t", "expand", "slice", "select", "as_strided",
    "unsqueeze", "squeeze",
})  # fmt: skip
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear"})


@dataclass(frozen=True)
class Operation:
    """One dispatched operation; tensors by their number, `inside`: the calls it ran in, outermost first."""

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inside: tuple[int, ...]
    subsamples: bool
    convolutions: int  # executed before it


@dataclass(frozen=True)
class Call:
    """One module, called once: the numbers of the tensors it took first and gave (−1: no tensor)."""

    name: str
    took: int
    gave: int
    first: int  # its operations are first … last − 1
    last: int
    convolutions: int  # executed before it


@dataclass
class Trace:
    """A forward pass. `shapes` by the number of a tensor; `maps`: those that are feature maps."""

    axes: int
    calls: list[Call] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    maps: set[int] = field(default_factory=set)

    def size(self, number: int) -> tuple[int, ...]:
        """The spatial size of a map; () of anything else."""
        return self.shapes[number][2:] if number in self.maps else ()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace
        self.alive: list[Tensor] = []  # keeps identities apart while tracing
        self.numbers: dict[int, int] = {}
        self.stack: list[int] = []
        self.convolutions = 0

    def number(self, tensor: Any, *, new: bool = False) -> int:
        if not isinstance(tensor, Tensor):
            return -1
        if new or id(tensor) not in self.numbers:
            self.alive.append(tensor)
            self.numbers[id(tensor)] = len(self.alive)
            self.trace.shapes[len(self.alive)] = tuple(tensor.shape)
        return self.numbers[id(tensor)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:  # in inference mode, conv2d and the like come as they were called
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        name = func._schema.name.partition("::")[2]
        inputs = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        reads = tuple(self.number(t) for t in inputs)
        result = func(*args, **(kwargs or {}))
        outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        writes = tuple(self.number(t, new=func._schema.is_mutable) for t in outputs)
        seen, shapes = self.convolutions, self.trace.shapes
        spatial = name in CONVOLUTIONS | POOLS | RESIZES or (name == "slice" and self._skips_points(args))
        smaller = bool(spatial and reads and writes and _smaller(shapes[writes[0]], shapes[reads[0]]))
        # a convolution without padding loses its border, which is no subsampling
        strided = name not in CONVOLUTIONS or max(args[3]) > 1
        self.convolutions += name in CONVOLUTIONS
        operation = Operation(name, reads, writes, tuple(self.stack), smaller and strided, seen)
        self.trace.operations.append(operation)
        self._note_maps(operation)
        return result

    def _skips_points(self, args: Any) -> bool:
        """Whether a slice takes every second point, or so, of an axis that is spatial in a map: x[:, :, ::2, ::2]."""
        x, axis, step = args[0], args[1] if len(args) > 1 else 0, args[4] if len(args) > 4 else 1
        return bool(step > 1 and x.ndim == self.trace.axes + 2 and axis % x.ndim >= 2)

    def _note_maps(self, op: Operation) -> None:
        t = self.trace
        rank = t.axes + 2
        if op.name in CONVOLUTIONS | POOLS | RESIZES | NORMS:
            t.maps |= {n for n in (*op.reads[:1], *op.writes[:1]) if len(t.shapes[n]) == rank}
        elif op.name not in VIEWS:
            sizes = {t.shapes[n][2:] for n in op.reads if n in t.maps}
            t.maps |= {n for n in op.writes if len(t.shapes[n]) == rank and t.shapes[n][2:] in sizes}

    def complete(self) -> None:
        """Once all is seen, backwards: what a map was cut, joined or computed from point by point is a map too."""
        t = self.trace
        for op in reversed(t.operations):
            if op.name not in VIEWS - {"slice"}:
                sizes = {t.shapes[n][2:] for n in op.writes if n in t.maps}
                t.maps |= {n for n in op.reads if len(t.shapes[n]) == t.axes + 2 and t.shapes[n][2:] in sizes}

    def enter(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            took = self.number(args[0]) if args else -1
            self.stack.append(len(self.trace.calls))
            self.trace.calls.append(Call(name, took, -1, len(self.trace.operations), -1, self.convolutions))

        return hook

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        at = self.stack.pop()
        c = self.trace.calls[at]
        end = len(self.trace.operations)
        self.trace.calls[at] = Call(c.name, c.took, self.number(output), c.first, end, c.convolutions)


def _smaller(out: tuple[int, ...], of: tuple[int, ...]) -> bool:
    return any(a < b for a, b in zip(out[2:], of[2:], strict=False))


def axes_of(model: nn.Module) -> int:
    """1, 2 or 3: the spatial axes of the first convolution; 0 if there is none."""
    convolution = next((m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)), None)
    return 0 if convolution is None else convolution.weight.ndim - 2


def trace(model: nn.Module, example: Any) -> Trace:
    """One forward pass on `example` (a batch, or a tuple or dict of arguments) in evaluation mode.

    Hooks, modes and the random generators are put back as found.
    """
    found = Trace(axes_of(model))
    recorder = _Recorder(found)
    hooks = [m.register_forward_pre_hook(recorder.enter(name)) for name, m in model.named_modules() if name]
    hooks += [m.register_forward_hook(recorder.leave) for name, m in model.named_modules() if name]
    try:
        with _evaluating(model), torch.random.fork_rng(devices=_devices(model)), torch.no_grad(), recorder:
            if isinstance(example, Mapping):
                model(**example)
            else:
                model(*(example if isinstance(example, (tuple, list)) else (example,)))
    finally:
        for hook in hooks:
            hook.remove()
    recorder.complete()
    return found


def _devices(model: nn.Module) -> list[torch.device]:
    """The CUDA devices that a random number of this network could come from."""
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    flags = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for m, flag in flags:
            m.training = flag
