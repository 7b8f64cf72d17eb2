"""The features of a classifier: the input of its last linear layer, recorded while it predicts.

    logits = W f(x) + b,      `Penultimate` returns f(x) [N, D]

This works for any model that ends in `nn.Linear`. The last linear layer is the one that ran last, and its output must
have the shape of the logits. The model is not changed; the hooks are removed when the context ends.
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
        """Return the features of the call that returned these logits: [N, D], float32 on the CPU."""
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
