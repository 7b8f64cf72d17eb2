"""One forward pass, written down: which module took and gave which tensor, and which operation read and wrote which.

Shapes alone do not tell a feature map from tokens, nor a strided layer from one without padding, and a function
(`F.max_pool2d`) is not a module. So operations are recorded as torch dispatches them: what a convolution or a pool
reads is a map [N, C, …], and what it strides over is subsampling. A tensor changed in place is a new one here.

Each map has its own number of spatial axes: a network may have a 2-d trunk and a 1-d head.

MC dropout follows networks by another tool, `torch.export` (`ensembles/network_graph.py`), and neither can do the
other's work. MC dropout needs a program that runs again, on batches of any size; a network that export cannot follow is
declined. What is recorded here is never run again. It must tell which module took and gave each tensor, which an
exported graph does not; it must do so for every network that runs, whatever its Python does; and it is made for up to
four sizes of image, each in about a fourteenth of the time of an export (median over 45 networks of
tests/nn/test_surgery_*.py).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
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
    """One dispatched operation; tensors by their number, `inside`: the calls it ran in, outermost first."""

    at: int
    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inside: tuple[int, ...]
    axes: int  # over which it slides: 2 of a 2-d convolution; 0 of what is not spatial
    subsamples: bool
    rectifies: bool  # it is max(z, 0)
    convolutions: int  # that what it reads has come through


@dataclass(frozen=True)
class Call:
    """One module, called once: the numbers of the tensors it took first and gave (−1: no tensor).

    `takes`, `gives`: that tensor, or those of the tuple or list in its place (a dual-path block hands on two maps).
    """

    name: str
    took: int
    gave: int
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    convolutions: int  # that what it took has come through


@dataclass
class Trace:
    """A forward pass. `shapes` by the number of a tensor; `maps`: those that are feature maps."""

    calls: list[Call] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    maps: set[int] = field(default_factory=set)
    writers: dict[int, Operation] = field(default_factory=dict)
    upstream: dict[int, int] = field(default_factory=dict)  # the operations a tensor came through, a bit each
    lifted: dict[int, int] = field(default_factory=dict)  # [N, C, 1, L] by which torch has 1-d pools → [N, C, L]
    items: dict[int, int] = field(default_factory=dict)  # a batch of one → the item alone

    def size(self, number: int) -> tuple[int, ...]:
        """The spatial size of a map; () of anything else."""
        return self.shapes[number][2:] if number in self.maps else ()

    def points(self, number: int) -> int:
        """The longest axis of a map; 0 of anything else."""
        return max(self.size(number), default=0)

    def behind(self, op: Operation) -> list[Operation]:
        """The operations that what `op` wrote flows into, in their order."""
        bit = 1 << op.at
        return [o for o in self.operations[op.at + 1 :] if any(self.upstream.get(n, 0) & bit for n in o.reads)]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace
        self.alive: list[Tensor] = []  # keeps identities apart while tracing
        self.numbers: dict[int, int] = {}
        self.stack: list[int] = []
        self.convolving = 0  # the operations that are convolutions, a bit each

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
        came = 0
        for n in reads:
            came |= t.upstream.get(n, 0)
        spatial = bool(name in SPATIAL or (name == "slice" and skips_points(given))) and bool(reads and writes)
        shrinks = spatial and smaller(t.shapes[writes[0]], t.shapes[reads[0]])
        # a convolution without padding loses its border, which is not subsampling
        strided = name not in CONVOLUTIONS or max(given["stride"]) > 1
        op = Operation(
            at, name, reads, writes, tuple(self.stack), self._axes(name, reads), shrinks and strided,
            rectifies(name, given), (came & self.convolving).bit_count(),
        )  # fmt: skip
        t.operations.append(op)
        self.convolving |= (name in CONVOLUTIONS) << at
        for n in set(writes) - set(reads):
            t.upstream[n], t.writers[n] = came | 1 << at, op
        if name == "unsqueeze":
            axis, rank = given["dim"] % len(t.shapes[writes[0]]), len(t.shapes[writes[0]])
            (t.items if axis == 0 else t.lifted if axis == rank - 2 and rank in (3, 4) else {})[writes[0]] = reads[0]
        patches = op.convolutions < 2  # what cuts an image into tokens is a convolution, too
        if name == "mean" and averages_all(given) and not patches and reads[0] not in t.lifted:
            t.maps.add(reads[0])  # adaptive average pooling to one point, whatever made the map: tokens, put back
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
            sizes = {t.shapes[n][2:] for n in op.reads if n in t.maps}  # an instance norm is a batch norm of a view
            t.maps |= {n for n in op.writes if t.shapes[n][2:] in sizes}

    def complete(self) -> None:
        """Once all is seen, backwards: what a map was cut, joined or computed from point by point is a map too."""
        t = self.trace
        for op in reversed(t.operations):
            if op.name not in VIEWS - {"slice"}:
                sizes = {t.shapes[n][2:] for n in op.writes if n in t.maps}
                t.maps |= {n for n in op.reads if t.shapes[n][2:] in sizes}

    def enter(self, name: str, argument: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = args[0] if args else kwargs.get(argument)
            takes, came = self._numbers(given), 0
            for n in takes:
                came |= self.trace.upstream.get(n, 0)
            seen = (came & self.convolving).bit_count()
            self.stack.append(len(self.trace.calls))
            self.trace.calls.append(Call(name, self.number(given), -1, takes, (), seen))

        return hook

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        at = self.stack.pop()
        self.trace.calls[at] = replace(self.trace.calls[at], gave=self.number(output), gives=self._numbers(output))

    def _numbers(self, given: Any) -> tuple[int, ...]:
        """Of a tensor, or of each in a tuple or list of nothing else."""
        parts = given if type(given) in (tuple, list) else (given,)
        return tuple(self.number(t) for t in parts) if all(isinstance(t, Tensor) for t in parts) else ()


def _whole(parts: list[Tensor]) -> list[Tensor]:
    """What was changed with its part: out[:, :8] = x."""
    return [t._base for t in parts if t._base is not None]


def first_argument(module: nn.Module) -> str:
    """The name by which a call may give what a module takes first."""
    try:
        return next(iter(inspect.signature(module.forward).parameters), "")
    except (TypeError, ValueError):
        return ""


def trace(model: nn.Module, example: Any) -> Trace:
    """One forward pass on `example` (a batch, or a tuple or dict of arguments) in evaluation mode.

    Buffers, hooks, modes and the random generators are put back as found.
    """
    found = Trace()
    recorder = _Recorder(found)
    hooks: list[Any] = []
    with (
        torch.inference_mode(False),  # there, conv2d and the like would come whole, not as what they are made of
        evaluation(model),
        _same_buffers(model),
        torch.random.fork_rng(devices=_devices(model)),
    ):
        for name, m in model.named_modules():
            if name and not isinstance(m, torch.jit.ScriptModule):  # which takes no hooks; its operations are seen
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
    """The CUDA devices that a random number of this network could come from."""
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """What a forward pass counts in buffers is forgotten."""
    known = [(m, name, b) for m in model.modules() for name, b in m._buffers.items()]
    # a buffer made in inference mode cannot be written to here
    values = [None if b is None or b.is_inference() else (b._version, b.clone()) for _, _, b in known]
    try:
        yield
    finally:
        with torch.no_grad():
            for (m, name, b), value in zip(known, values, strict=True):
                m._buffers[name] = b
                if b is not None and value is not None and value[0] != b._version:
                    b.copy_(value[1])
