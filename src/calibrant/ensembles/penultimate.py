"""The features of a classifier: what its last linear layer reads, taken while it predicts.

    logits = W f(x) + b,      `Penultimate` hands out f(x) [N, D]

Works for any model that ends in `nn.Linear`: the last one that ran is it, and its output must have the shape of the
logits. Nothing of the model is changed; the hooks go when the context ends.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn

from calibrant.errors import InputError


class Penultimate:
    """`with Penultimate(model) as penultimate: logits = model(x); f = penultimate.features(logits)`."""

    def __init__(self, model: Any) -> None:
        self._name = type(model).__name__
        layers = [m for m in model.modules() if isinstance(m, nn.Linear)] if isinstance(model, nn.Module) else []
        self._hooks = [layer.register_forward_hook(self._keep) for layer in layers]
        self._input: Tensor | None = None
        self._shape: tuple[int, ...] = ()

    def _keep(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._input, self._shape = inputs[0], tuple(output.shape)

    def features(self, logits: Tensor) -> Tensor:
        """[N, D] of the call that gave these logits, float32 on the CPU."""
        if self._input is None or self._shape != tuple(logits.shape):
            raise InputError(
                f"{self._name} has no features to write: they are the input of a last nn.Linear whose output is the "
                f"logits {tuple(logits.shape)}, and "
                + ("no nn.Linear ran" if self._input is None else f"the last one gave {self._shape}")
            )
        found, self._input = self._input.detach().float().cpu(), None
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for hook in self._hooks:
            hook.remove()
