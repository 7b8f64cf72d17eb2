"""A network's forward pass as a graph of torch's operations (`torch.export`), and what may be asked of its nodes.

Export runs the network's Python code once on stand-ins for tensors, so the graph is that of any batch. A network that
it cannot follow (numbers taken out of PyTorch, decisions by values), or that writes to what outlives the pass, has no
graph here: `NoGraph` says why. (`nn/tracing.py`, by which surgery follows networks, says why there are two tools.)

Operations in place stay in the graph, and `cloning` says which must write to a copy. `run_decompositions({})` would
take them all out, but it traces once more and puts another kernel in the place of batch norm's.
"""

from __future__ import annotations

import copy
import logging
import operator
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Node

from calibrant.functional.model_output import logits_of
from calibrant.nn.insertion import every_module, listened

_SYMBOLIC: dict[type, Callable[[Any], Any]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_MODES = ("train", "training", "use_input_stats")
_RATES = ("p", "dropout", "dropout_p")


class NoGraph(Exception):  # no error of the user's: the plain loop takes over
    """Why a network cannot be split, in words."""


class _Logits(nn.Module):
    """The network, returning its logits whatever it wraps them in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        before = settings_of(self.model)
        logits = logits_of(self.model(x))
        if settings_of(self.model) != before:  # a counter, or a tensor that is kept for the next pass
            raise NoGraph("it changes its own attributes when it runs")
        return logits


def compiled(model: nn.Module) -> bool:
    return any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None for m in model.modules())


def settings_of(model: nn.Module) -> tuple[Any, ...]:
    """All that a graph of the network depends on besides its input and the values of its tensors."""
    return tuple(_settings(m) for m in every_module(model))


def _settings(m: nn.Module) -> tuple[Any, ...]:
    plain = tuple((k, v) for k, v in vars(m).items() if type(v) in (int, float, bool, str))
    held = tuple(id(t) for t in (*vars(m).values(), *m._buffers.values()) if isinstance(t, Tensor))
    return id(m), plain, held, len(m._forward_hooks), len(m._forward_pre_hooks)


def twin(model: nn.Module) -> nn.Module:
    """A copy on the same tensors: what tracing leaves in the network's Python attributes goes with it."""
    if compiled(model):
        raise NoGraph("it is compiled")
    if listened(model):
        raise NoGraph("somebody's hooks on its modules must see every member")
    held = (t for m in model.modules() for t in (*m._parameters.values(), *m._buffers.values(), *vars(m).values()))
    try:
        return copy.deepcopy(model, {id(t): t for t in held if isinstance(t, Tensor)})
    except Exception as error:  # anything may hang on a module
        raise NoGraph(f"it cannot be copied ({error})") from error


def export(model: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    """The graph of `model`, with its modules in their present modes, for batches of any size of items like `x`'s."""
    with (
        warnings.catch_warnings(),
        redirect_stderr(StringIO()),  # torch prints the graph of what it cannot follow
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(x.device.type, enabled=False),  # the graph stands above autocast, which applies when it is run
    ):
        warnings.simplefilter("ignore")
        logging.disable()
        example = torch.empty_like(x if len(x) > 1 else torch.cat([x, x]))  # a batch of 1 would become a constant
        shapes = ({0: torch.export.Dim.AUTO},)
        try:
            return torch.export.export(_Logits(model), (example,), strict=False, dynamic_shapes=shapes)
        except NoGraph:
            raise
        except Exception as error:  # anyone's code runs here, and may fail in any way
            said = str(error).strip().splitlines() or [""]
            raise NoGraph(f"torch.export cannot follow it ({type(error).__name__}: {said[0]})") from error
        finally:
            logging.disable(logging.NOTSET)


def sources(program: torch.export.ExportedProgram) -> dict[Node, Callable[[nn.Module], Tensor] | None]:
    """Where each input of the graph comes from: a function of the network, or None for the batch itself."""
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = signature.inputs_to_lifted_tensor_constants

    def source(n: Node) -> Callable[[nn.Module], Tensor] | None:
        if n.name in signature.user_inputs:
            return None
        if n.name in named:
            path, _, key = named[n.name].removeprefix("model.").rpartition(".")
            return lambda model: getattr(model.get_submodule(path), key)
        if n.name in constants:
            constant = program.constants[constants[n.name]]
            return lambda model: constant
        raise NoGraph(f"it reads {n.name}, which is not a tensor")

    return {n: source(n) for n in program.graph.nodes if n.op == "placeholder"}


def batch_sizes(program: torch.export.ExportedProgram, x: Node) -> tuple[Any, Any, Any]:
    """(the symbol for the number of items, its smallest and its largest value); no symbol where the network's code
    takes the number itself, as by `len(x)`."""
    size = x.meta["val"].shape[0]
    symbol = size.node.expr if isinstance(size, torch.SymInt) else None
    if set(program.range_constraints) - {symbol}:
        raise NoGraph("its shapes depend on the values of its input")
    known = program.range_constraints.get(symbol)
    return (None, size, size) if known is None else (symbol, known.lower, known.upper)


def number(value: Any, symbol: Any, batch: int) -> Any:
    """A size or number of the graph, for a batch of this many items."""
    kind = _SYMBOLIC.get(type(value))
    return value if kind is None else kind(value.node.expr.subs(symbol, batch))


def symbolic(n: Node) -> bool:
    return type(n.meta.get("val")) in _SYMBOLIC


def tensors(n: Node) -> Iterator[Tensor]:
    """What a node gives: stand-ins with shapes and devices, no values."""
    value = n.meta.get("val")
    yield from (t for t in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(t, Tensor))


def item_axes(tensor: Tensor) -> tuple[int, ...]:
    """The axes whose size depends on the number of items."""
    return tuple(i for i, size in enumerate(tensor.shape) if isinstance(size, torch.SymInt))


def draws(n: Node) -> bool:
    """Whether a node draws random numbers: it can, is in training mode, and its rate is not 0."""
    if not isinstance(n.target, OpOverload) or torch.Tag.nondeterministic_seeded not in n.target.tags:
        return False
    given = arguments(n)
    on = all(given[name] for name in _MODES if name in given)
    return on and all(given[name] != 0 for name in _RATES if name in given)


def arguments(n: Node) -> dict[str, Any]:
    """By name, with the defaults."""
    assert isinstance(n.target, OpOverload)
    known = n.target._schema.arguments
    default = {a.name: a.default_value for a in known if a.has_default_value()}
    return {**default, **dict(zip((a.name for a in known), n.args, strict=False)), **n.kwargs}


def written(n: Node) -> Node | None:
    """The tensor that a node writes to; None of an operation that writes to nothing."""
    if not isinstance(n.target, OpOverload):
        if n.op == "call_function" and n.target is not operator.getitem and not symbolic(n):
            raise NoGraph(f"{n.target} is not an operation on tensors")
        return None
    given = arguments(n)
    if given.get("running_mean") is not None and any(given.get(mode) for mode in _MODES):
        raise NoGraph("it updates its running statistics")
    names = [a.name for a in n.target._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not names or n.target is torch.ops.aten.detach_.default:  # of `torch.tensor(…)` in a forward: changes no number
        return None
    if names != [n.target._schema.arguments[0].name] or not isinstance(n.args[0], Node):
        raise NoGraph(f"{n.target} writes to several tensors, or to one that is not its first argument")
    return n.args[0]


def cloning(nodes: Sequence[Node], member: set[Node]) -> set[Node]:
    """Of the nodes that write to a tensor, those that must write to a copy of it, because the other part reads it.

    Within one part nodes run in the network's order, and so they do from the shared part to the member part. Where that
    is not enough, a copy does, unless what was written is read under another name later.
    """
    at = {n: i for i, n in enumerate(nodes)}
    memory: dict[int, list[Node]] = defaultdict(list)
    for n in nodes:
        for t in tensors(n):
            memory[t.untyped_storage()._cdata].append(n)
    writes: dict[int, list[Node]] = defaultdict(list)
    for n in nodes:
        if (target := written(n)) is not None:
            writes[target.meta["val"].untyped_storage()._cdata].append(n)
    found: set[Node] = set()
    for place, writers in writes.items():
        names = memory[place]
        if any(n.op == "placeholder" for n in names):
            raise NoGraph("it writes to its input, its weights or its buffers")
        last = max(at[n] for n in writers)
        early = any(u in member and at[u] < last for n in names for u in n.users)
        if all(n in member for n in names) or not (early or any(n in member for n in writers)):
            continue
        for w in writers:
            if any(at[n] < at[w] < at[u] for n in names for u in n.users):
                raise NoGraph(f"{w.target} changes a tensor that members share and that is read under another name")
        found.update(writers)
    return found
