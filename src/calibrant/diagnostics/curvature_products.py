"""Products v ↦ A v with a curvature matrix, from the logits of one forward pass and their mean loss.

Each function differentiates once and returns a function of v, which can be called any number of times. An operation
without a second derivative is named in the error: PyTorch names most of them; the others are found by the node that
`once_differentiable` leaves in the graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError

Product = Callable[[Sequence[Tensor]], Sequence[Tensor | None]]


def hessian(logits: Tensor, loss: Callable[[Tensor], Tensor], thetas: Sequence[Tensor]) -> Product:
    each = gradient(loss(logits), thetas, create_graph=True)
    differentiable = [(g, i) for i, g in enumerate(each) if g is not None and g.requires_grad]
    if not differentiable:
        raise InputError("the gradient of the loss does not depend on the parameters: it has no second derivative")

    def product(v: Sequence[Tensor]) -> Sequence[Tensor | None]:
        outputs, places = zip(*differentiable, strict=True)
        return torch.autograd.grad(outputs, thetas, [v[i] for i in places], retain_graph=True, allow_unused=True)

    return product


def gauss_newton(logits: Tensor, loss: Callable[[Tensor], Tensor], thetas: Sequence[Tensor]) -> Product:
    with torch.enable_grad():
        z = logits.detach().requires_grad_(True)
        slope: Tensor = gradient(loss(z), [z], create_graph=True)[0]

    def hessian_of_loss(push: Tensor) -> Tensor:
        if not slope.requires_grad:
            return torch.zeros_like(push)
        out: Tensor = torch.autograd.grad(slope, z, push, retain_graph=True)[0]
        return out

    return _through_jacobian(logits, thetas, hessian_of_loss)


def fisher(logits: Tensor, loss: Callable[[Tensor], Tensor], thetas: Sequence[Tensor]) -> Product:
    z = logits.detach().requires_grad_(True)
    slope: Tensor = gradient(loss(z), [z])[0] * len(logits)  # that of each item's own loss

    def outer_product(push: Tensor) -> Tensor:
        along = (slope * push).reshape(len(push), -1).sum(1) / len(push)
        return slope * along.reshape(-1, *[1] * (push.ndim - 1))

    return _through_jacobian(logits, thetas, outer_product)


KINDS: dict[str, Callable[[Tensor, Callable[[Tensor], Tensor], Sequence[Tensor]], Product]] = {
    "hessian": hessian,
    "gauss_newton": gauss_newton,
    "fisher": fisher,
}
"""Name → a function (logits, mean loss of logits, parameters) that returns v ↦ A v."""


def _through_jacobian(logits: Tensor, thetas: Sequence[Tensor], middle: Callable[[Tensor], Tensor]) -> Product:
    """Return v ↦ Jᵀ M J v.

    J v is the derivative of Jᵀu with respect to u. It takes two backward passes, so no operation needs a forward
    derivative.
    """
    u = torch.zeros_like(logits, requires_grad=True)
    pulled = [(g, i) for i, g in enumerate(gradient(logits, thetas, u, create_graph=True)) if g is not None]

    def product(v: Sequence[Tensor]) -> Sequence[Tensor | None]:
        outputs, places = zip(*pulled, strict=True)
        (push,) = torch.autograd.grad(outputs, u, [v[i] for i in places], retain_graph=True)
        return torch.autograd.grad(logits, thetas, middle(push), retain_graph=True, allow_unused=True)

    return product


def gradient(output: Tensor, inputs: Sequence[Tensor], along: Tensor | None = None, **options: Any) -> Any:
    """Return the gradient for each input; refuse where it, or its own derivative, would silently be wrong."""
    if not output.requires_grad:
        raise InputError(
            "the loss does not depend on the parameters through differentiable operations; return logits that were "
            "not detached, and a loss without argmax or rounding"
        )
    found = torch.autograd.grad(output, inputs, along, allow_unused=True, **options)
    # `once_differentiable` leaves a node that no backward pass visits: the derivative would silently lack its part
    if any(type(node).__name__ == "Error" for node in _autograd_nodes(found)):
        ours = (n for n in _autograd_nodes([output]) if isinstance(n, torch.autograd.function.BackwardCFunction))
        raise _no_second_derivative(", ".join(sorted({type(node).__name__.removesuffix("Backward") for node in ours})))
    return found


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Turn PyTorch's error about a missing second derivative into one that names the operation and the remedy."""
    try:
        yield
    except RuntimeError as error:
        named = re.search(r"derivative for '?([\w:.]+)'? is not|through ([\w:.]+) but", str(error))
        if named is None:
            raise
        raise _no_second_derivative(named[1] or named[2]) from error


def _no_second_derivative(name: str) -> InputError:
    return InputError(
        f"{name} has no second derivative; write it with operations of PyTorch, or where it is one of calibrant's "
        "smoothing layers, compute inside `with calibrant.reference():`"
    )


def _autograd_nodes(outputs: Iterable[Tensor | None]) -> Iterator[Any]:
    """Yield every node of the autograd graph of these tensors."""
    seen: set[Any] = {None}
    ahead: list[Any] = [t.grad_fn for t in outputs if t is not None]
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
            yield node
