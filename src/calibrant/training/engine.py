"""Which engine `engine = "auto"` means, and a compiled network that falls back where it cannot be compiled.

On an H200, ResNet-18 at batch 512 runs 83,400 images/s compiled and captured, 62,100 captured. Compiling takes about a
minute on a cold cache, which a short training does not earn back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.protocols import Stateful
from calibrant.training.recipe import Recipe

LONG = 4_000_000
"""Images that a training must see before compiling is worth its minute: about one of captured steps."""


def engine_of(recipe: Recipe, device: str, processes: int, penalties: Sequence[Any], items: int) -> tuple[str, str]:
    """The engine that a recipe runs with, and why where `auto` did not take the fastest."""
    if recipe.engine != "auto":
        return recipe.engine, ""
    if device != "cuda":
        return "eager", ""
    if processes > 1:
        return "eager", "steps run eagerly: captured ones cannot talk to other processes"
    history = [type(p).__name__ for p in penalties if isinstance(p, Stateful)]
    if history:
        return "eager", f"steps run eagerly: the penalty {history[0]} keeps a history, which cannot be captured"
    return ("compile+graph" if items * recipe.epochs >= LONG else "graph"), ""


class CompiledOr:
    """A network, compiled at its first call; if that fails, the network as it is, and one line that says so."""

    def __init__(self, network: nn.Module, say: Callable[[str], None]) -> None:
        self.network, self.say = network, say
        self.forward: Any = None

    def __call__(self, x: Tensor) -> Tensor:
        if self.forward is None:
            self.forward = torch.compile(self.network)
            try:
                first: Tensor = self.forward(x)
                return first
            except Exception as error:  # compilers have errors without number
                self.forward = self.network
                why = next(iter(str(error).splitlines()), type(error).__name__)
                self.say(f"not compiled, and slower for it: {type(error).__name__}: {why}")
        out: Tensor = self.forward(x)
        return out
