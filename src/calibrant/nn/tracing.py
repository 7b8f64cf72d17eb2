"""Record one forward pass: which modules took and returned which tensors, and which operations read and wrote them.

Shapes alone do not distinguish a feature map from tokens, or a strided layer from one without padding, and a function
(`F.max_pool2d`) is not a module. So operations are recorded as torch dispatches them: the input of a convolution or a
pool is a map [N, C, …], and a stride is subsampling. A tensor that is changed in place counts as a new tensor.

Each map has its own number of spatial axes: a network may have a 2-d trunk and a 1-d head.

MC dropout uses `torch.export` instead (`ensembles/network_graph.py`), because it needs a program that runs again. An
exported graph does not tell which module took and returned a tensor, cannot be made of every network, and takes about
fourteen times as long as this record.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from calibrant.nn.evaluation import evaluation
from calibrant.nn.operations import (
    CONVOLUTIONS,
    NORMS,
    POOLS,
    SPATIAL,
    VIEWS,
    averages_all,
    rectifies,
    skips_points,
    smaller,
)


@dataclass(frozen=True)
class Operation:
    """One dispatched operation. Tensors are given by their numbers."""

    at: int
    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inside: tuple[int, ...]  # the calls in which it ran, outermost first
    axes: int  # number of spatial axes: 2 for a 2-d convolution, 0 for an operation that is not spatial
    subsamples: bool
    rectifies: bool  # it is max(z, 0)
    convolutions: int  # number of convolutions on which its inputs depend


@dataclass(frozen=True)
class Call:
    """One call of a module. `took` and `gave` are its first argument and its output (−1 if that is no tensor)."""

    name: str
    took: int
    gave: int
    convolutions: int  # number of convolutions on which its first argument depends


@dataclass
class Trace:
    """The record of a forward pass. Tensors are numbered."""

    calls: list[Call] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    maps: set[int] = field(default_factory=set)  # the tensors that are feature maps
    writers: dict[int, Operation] = field(default_factory=dict)
    upstream: dict[int, int] = field(default_factory=dict)  # the operations on which a tensor depends, one bit each
    lifted: dict[int, int] = field(default_factory=dict)  # [N, C, 1, L], as torch computes 1-d pools → [N, C, L]

    def size(self, number: int) -> tuple[int, ...]:
        """Return the spatial size of a map; () for anything else."""
        return self.shapes[number][2:] if number in self.maps else ()

    def points(self, number: int) -> int:
        """Return the length of a map's longest axis; 0 for anything else."""
        return max(self.size(number), default=0)

    def inputs(self, op: Operation) -> list[int]:
        """Return the tensors that an operation reads and an earlier operation computed, unlike weights and images."""
        return [n for n in op.reads if self.upstream.get(n)]

    def ancestors(self, numbers: Iterable[int]) -> int:
        """Return the operations on which any of these tensors depends, one bit each."""
        found = 0
        for n in numbers:
            found |= self.upstream.get(n, 0)
        return found

    def dependents(self, op: Operation) -> list[Operation]:
        """Return the operations that depend on the output of `op`, in their order."""
        bit = 1 << op.at
        return [o for o in self.operations[op.at + 1 :] if any(self.upstream.get(n, 0) & bit for n in o.reads)]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace
        self.alive: list[Tensor] = []  # keeps all tensors alive, so that no id is used twice
        self.numbers: dict[int, int] = {}
        self.stack: list[int] = []
        self.convolving = 0  # the operations that are convolutions, one bit each

    def number(self, tensor: Any, *, new: bool = False) -> int:
        if not isinstance(tensor, Tensor):
            return -1
        if new or id(tensor) not in self.numbers:
            self.alive.append(tensor)
            self.numbers[id(tensor)] = len(self.alive)
            self.trace.shapes[len(self.alive)] = tuple(tensor.shape)
        return self.numbers[id(tensor)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        changes = func._schema.is_mutable
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        reads = tuple(self.number(t) for t in [*inputs, *_whole(inputs[:1] if changes else [])])
        result = func(*args, **kwargs)
        outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        writes = tuple(self.number(t, new=changes) for t in [*outputs, *_whole(outputs if changes else [])])
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        self._note(func._schema.name.partition("::")[2], given, reads, writes)
        return result

    def _note(self, name: str, given: dict[str, Any], reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        t, at = self.trace, len(self.trace.operations)
        before = t.ancestors(reads)
        spatial = bool(name in SPATIAL or (name == "slice" and skips_points(given))) and bool(reads and writes)
        shrinks = spatial and smaller(t.shapes[writes[0]], t.shapes[reads[0]])
        # a convolution without padding only loses the border of its map
        strided = name not in CONVOLUTIONS or max(given["stride"]) > 1
        op = Operation(
            at, name, reads, writes, tuple(self.stack), self._axes(name, reads), shrinks and strided,
            rectifies(name, given), (before & self.convolving).bit_count(),
        )  # fmt: skip
        t.operations.append(op)
        self.convolving |= (name in CONVOLUTIONS) << at
        for n in set(writes) - set(reads):
            t.upstream[n], t.writers[n] = before | 1 << at, op
        if name == "unsqueeze":
            rank = len(t.shapes[writes[0]])
            if rank in (3, 4) and given["dim"] % rank == rank - 2:
                t.lifted[writes[0]] = reads[0]
        patches = op.convolutions < 2  # the only convolution cut the image into tokens
        if name == "mean" and averages_all(given) and not patches and reads[0] not in t.lifted:
            t.maps.add(reads[0])  # adaptive average pooling to one point; its input is a map even if made of tokens
        self._note_maps(op)

    def _axes(self, name: str, reads: tuple[int, ...]) -> int:
        shapes = self.trace.shapes
        if name in CONVOLUTIONS:
            return len(shapes[reads[1]]) - 2
        if name in SPATIAL:
            said = re.search(r"([123])d", name)
            axes = int(said[1]) if said else 2
            return axes - (name in POOLS and reads[0] in self.trace.lifted)
        return len(shapes[reads[0]]) - 2 if name == "slice" else 0

    def _note_maps(self, op: Operation) -> None:
        t = self.trace
        if op.name in SPATIAL:
            ends = (t.lifted.get(op.reads[0], op.reads[0]), op.writes[0])
            t.maps |= {n for n in ends if len(t.shapes[n]) == op.axes + 2}
        elif op.name == "squeeze" and (pool := t.writers.get(op.reads[0])) and pool.axes == 1 and pool.name in POOLS:
            t.maps |= {n for n in op.writes if len(t.shapes[n]) == 3}
        elif op.name in NORMS and len(t.shapes[op.reads[0]]) in {len(t.shapes[n]) for n in t.maps}:
            t.maps |= {op.reads[0], op.writes[0]}
        elif op.name not in VIEWS - {"slice"} or ((norm := t.writers.get(op.reads[0])) and norm.name in NORMS):
            # the result of a pointwise operation, or of an instance norm, which is a batch norm of a view
            sizes = {t.shapes[n][2:] for n in op.reads if n in t.maps}
            t.maps |= {n for n in op.writes if t.shapes[n][2:] in sizes}

    def complete(self) -> None:
        """Go backwards through the pass: tensors from which a map was sliced, joined or computed pointwise are maps."""
        t = self.trace
        for op in reversed(t.operations):
            if op.name not in VIEWS - {"slice"}:
                sizes = {t.shapes[n][2:] for n in op.writes if n in t.maps}
                t.maps |= {n for n in op.reads if t.shapes[n][2:] in sizes}

    def enter(self, name: str, argument: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            took = self.number(args[0] if args else kwargs.get(argument))
            convolutions = (self.trace.ancestors([took]) & self.convolving).bit_count()
            self.stack.append(len(self.trace.calls))
            self.trace.calls.append(Call(name, took, -1, convolutions))

        return hook

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        at = self.stack.pop()
        self.trace.calls[at] = replace(self.trace.calls[at], gave=self.number(output))


def _whole(parts: list[Tensor]) -> list[Tensor]:
    """Return the tensors of which these are views, because out[:, :8] = x changes `out`."""
    return [t._base for t in parts if t._base is not None]


def first_argument(module: nn.Module) -> str:
    """Return the name of a module's first argument, by which a call may pass it."""
    try:
        return next(iter(inspect.signature(module.forward).parameters), "")
    except (TypeError, ValueError):
        return ""


def trace(model: nn.Module, example: Any) -> Trace:
    """Record one forward pass on `example` (a batch, or a tuple or dict of arguments) in evaluation mode.

    Buffers, hooks, modes and random generators are restored.
    """
    found = Trace()
    recorder = _Recorder(found)
    hooks: list[Any] = []
    with (
        torch.inference_mode(False),  # inference mode would dispatch conv2d and others under other names
        evaluation(model),
        _same_buffers(model),
        torch.random.fork_rng(devices=_devices(model)),
    ):
        for name, m in model.named_modules():
            if name and not isinstance(m, torch.jit.ScriptModule):  # takes no hooks; its operations are recorded
                hooks.append(m.register_forward_pre_hook(recorder.enter(name, first_argument(m)), with_kwargs=True))
                hooks.append(m.register_forward_hook(recorder.leave))
        example = tree_map_only(Tensor, lambda t: t.clone() if t.is_inference() else t, example)
        try:
            with torch.no_grad(), recorder:
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
    """Return the CUDA devices whose generators the network may use."""
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the buffers, in which a forward pass may count."""
    known = [(m, name, b) for m in model.modules() for name, b in m._buffers.items()]
    # buffers made in inference mode cannot be written to here
    values = [None if b is None or b.is_inference() else (b._version, b.clone()) for _, _, b in known]
    try:
        yield
    finally:
        with torch.no_grad():
            for (m, name, b), value in zip(known, values, strict=True):
                m._buffers[name] = b
                if b is not None and value is not None and value[0] != b._version:
                    b.copy_(value[1])
