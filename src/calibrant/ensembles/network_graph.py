"""Export a network's forward pass as a graph of torch's operations (`torch.export`), and examine its nodes.

Export runs the network's Python code once on fake tensors, so the graph holds for any batch. A network has no graph if
export cannot follow it (it takes numbers out of PyTorch or decides by values), or if it writes to a tensor that
outlives the pass; `NoGraph` says why. `nn/tracing.py` explains why surgery uses another tool.

In-place operations stay in the graph. `run_decompositions({})` would remove them, but it traces once more and replaces
the kernel of batch norm.
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
from torch.utils._pytree import tree_leaves

from calibrant.functional.model_output import logits_of
from calibrant.nn.insertion import every_module, has_foreign_hooks

_SYMBOLIC: dict[type, Callable[[Any], Any]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_MODES = ("train", "training", "use_input_stats")
_RATES = ("p", "dropout", "dropout_p")


class NoGraph(Exception):  # never reaches the user: the plain loop takes over
    """The reason why a network has no graph, as the end of a sentence."""


class _Logits(nn.Module):
    """The network, reduced to its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        before = settings_of(self.model)
        logits = logits_of(self.model(x))
        if settings_of(self.model) != before:  # it counts, or keeps a tensor for the next pass
            raise NoGraph("it changes its own attributes when it runs")
        return logits


def compiled(model: nn.Module) -> bool:
    return any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None for m in model.modules())


def settings_of(model: nn.Module) -> tuple[Any, ...]:
    """Return everything that the network's graph depends on, except its input, the values of its tensors and the modes
    of its modules, which MC dropout sets itself."""
    return tuple(_settings(m) for m in every_module(model))


def _settings(m: nn.Module) -> tuple[Any, ...]:
    plain = tuple((k, v) for k, v in vars(m).items() if type(v) in (int, float, bool, str) and k != "training")
    held = tuple(id(t) for t in (*vars(m).values(), *m._buffers.values()) if isinstance(t, Tensor))
    return id(m), plain, held, len(m._forward_hooks), len(m._forward_pre_hooks)


def copy_sharing_tensors(model: nn.Module) -> nn.Module:
    """Return a copy that shares the model's tensors, so that tracing leaves no trace in the model's attributes."""
    if compiled(model):
        raise NoGraph("it is compiled")
    if has_foreign_hooks(model):
        raise NoGraph("hooks on its modules must see every member")
    held = (t for m in model.modules() for t in (*m._parameters.values(), *m._buffers.values(), *vars(m).values()))
    try:
        return copy.deepcopy(model, {id(t): t for t in held if isinstance(t, Tensor)})
    except Exception as error:  # a module may have attributes of any type
        raise NoGraph(f"it cannot be copied ({error})") from error


def export(model: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    """Export `model`, with its modules in their present modes, for batches of any number of items like those of `x`."""
    with (
        warnings.catch_warnings(),
        redirect_stderr(StringIO()),  # torch prints the graph that it could not complete
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(x.device.type, enabled=False),  # autocast applies when the graph is run
    ):
        warnings.simplefilter("ignore")
        logging.disable()
        example = torch.empty_like(x if len(x) > 1 else torch.cat([x, x]))  # export would fix a batch size of 1
        shapes = ({0: torch.export.Dim.AUTO},)
        try:
            return torch.export.export(_Logits(model), (example,), strict=False, dynamic_shapes=shapes)
        except NoGraph:
            raise
        except Exception as error:  # the network's own code runs here and may fail in any way
            reason = str(error).strip().partition("\n")[0]
            raise NoGraph(f"torch.export cannot follow it ({type(error).__name__}: {reason})") from error
        finally:
            logging.disable(logging.NOTSET)


def sources(program: torch.export.ExportedProgram) -> dict[Node, Callable[[nn.Module], Tensor] | None]:
    """Return for each input of the graph a function that reads it from the network, or None for the batch itself."""
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
    """Return the symbol of the number of items, and its smallest and largest value. The symbol is None where the
    network's code reads the number itself, as by `len(x)`."""
    size = x.meta["val"].shape[0]
    symbol = size.node.expr if isinstance(size, torch.SymInt) else None
    if set(program.range_constraints) - {symbol}:
        raise NoGraph("its shapes depend on the values of its input")
    known = program.range_constraints.get(symbol)
    return (None, size, size) if known is None else (symbol, known.lower, known.upper)


def number(value: Any, symbol: Any, batch: int) -> Any:
    """Evaluate a size or number of the graph for a batch of this many items."""
    kind = _SYMBOLIC.get(type(value))
    return value if kind is None else kind(value.node.expr.subs(symbol, batch))


def symbolic(n: Node) -> bool:
    return type(n.meta.get("val")) in _SYMBOLIC


def tensors(n: Node) -> Iterator[Tensor]:
    """Yield the fake tensors that a node returns: they have shapes and devices, but no values."""
    value = n.meta.get("val")
    yield from (t for t in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(t, Tensor))


def item_axes(tensor: Tensor) -> tuple[int, ...]:
    """Return the axes whose size depends on the number of items."""
    return tuple(i for i, size in enumerate(tensor.shape) if isinstance(size, torch.SymInt))


def draws(n: Node) -> bool:
    """Return whether a node draws random numbers: it can, is in training mode, and its rate is not 0."""
    if not isinstance(n.target, OpOverload) or torch.Tag.nondeterministic_seeded not in n.target.tags:
        return False
    given = arguments(n)
    on = all(given[name] for name in _MODES if name in given)
    return on and all(given[name] != 0 for name in _RATES if name in given)


def arguments(n: Node) -> dict[str, Any]:
    """Return the arguments of a node by name, with their defaults."""
    assert isinstance(n.target, OpOverload)
    known = n.target._schema.arguments
    default = {a.name: a.default_value for a in known if a.has_default_value()}
    return {**default, **dict(zip((a.name for a in known), n.args, strict=False)), **n.kwargs}


def written(n: Node) -> list[Node]:
    """Return the tensors that a node writes to."""
    if not isinstance(n.target, OpOverload):
        if n.op == "call_function" and n.target is not operator.getitem and not symbolic(n):
            raise NoGraph(f"{n.target} is not an operation on tensors")
        return []
    given = arguments(n)
    if given.get("running_mean") is not None and any(given.get(mode) for mode in _MODES):
        raise NoGraph("it updates its running statistics")
    if n.target is torch.ops.aten.detach_.default:  # torch.tensor(…) in a forward; it changes no number
        return []
    names = [a.name for a in n.target._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [held for held in tree_leaves([given[name] for name in names]) if isinstance(held, Node)]


def descendants(nodes: Sequence[Node], first: set[Node]) -> set[Node]:
    """Return `first` and every node that depends on it, in a graph that runs all other nodes before these.

    A tensor that one of these nodes writes to must be made by them as well. The same is true of a tensor that another
    node writes to after one of these has read it.
    """
    found, at = set(first), {n: i for i, n in enumerate(nodes)}
    names: dict[int, list[Node]] = defaultdict(list)  # memory → the nodes that return a tensor in it
    for n in nodes:
        for t in tensors(n):
            names[_memory(t)].append(n)
    writes = {n: [other for t in written(n) for other in names[_memory(t.meta["val"])]] for n in nodes}
    if any(n.op == "placeholder" for same in writes.values() for n in same):
        raise NoGraph("it writes to its input, its weights or its buffers")
    size = 0
    while size < len(found):
        size = len(found)
        for n in nodes:
            if not found.isdisjoint(n.all_input_nodes):
                found.add(n)
            if n in found or any(u in found and at[u] < at[n] for other in writes[n] for u in other.users):
                found.update(writes[n])
    return found


def _memory(tensor: Tensor) -> int:
    """Return what identifies the memory of a fake tensor."""
    return int(tensor.untyped_storage()._cdata)
