"""The feature maps [N, C, H, W] of any network, layer by layer in the order of execution.

By default the layers are the network's building blocks: its children, where torch's containers (Sequential, ModuleList)
stand for theirs, and every smoothing layer that was put in. A layer counts if it gives a map of more than one point.
If another layer hands the very same map on, that one is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.errors import NotApplicableError, unknown
from calibrant.nn.surgery import smoothed

Seen = Callable[[str, Tensor], None]


def layers_of(model: nn.Module, names: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """Name → module: those named, or the building blocks."""
    inserted: dict[str, nn.Module] = dict(smoothed(model))
    if names is None:
        return {**dict(_blocks(model, "")), **inserted}
    every = {**{name: m for name, m in model.named_modules() if name}, **inserted}
    for name in names:
        if name not in every:
            raise unknown("layer", name, every)
    return {name: every[name] for name in names}


def _blocks(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            yield from _blocks(child, f"{path}{name}.")
        else:
            yield path + name, child


@contextmanager
def watching(layers: dict[str, nn.Module], seen: Seen) -> Iterator[None]:
    """Inside, `seen(name, map)` is called for every map that one of the layers gives."""
    last: list[Any] = [None]

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def see(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2:].numel() > 1:
                if output is not last[0]:
                    seen(name, output.detach())
                last[0] = output

        return see

    handles = [module.register_forward_hook(hook(name)) for name, module in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def maps(model: nn.Module, network: Callable[..., Any], args: Any, kwargs: Any, layers: dict[str, nn.Module]) -> Any:
    """{layer: map} of one pass of `network`, which runs `model`'s layers. A layer that is used twice counts once."""
    found: dict[str, Tensor] = {}
    with watching(layers, found.setdefault):  # type: ignore[arg-type]
        network(*args, **kwargs)
    if not found:
        raise NotApplicableError(
            f"{type(model).__name__} has no feature maps [N, C, H, W] at these layers; variance and Fourier analysis "
            "are for convolutional networks"
        )
    return found


def stage_ends(sizes: dict[str, tuple[int, int]]) -> list[str]:
    """The last layer of each run of equally large maps, from {layer: (H, W)} in order; a stem of one layer is none."""
    names = list(sizes)
    ends = [i for i in range(len(names)) if i + 1 == len(names) or sizes[names[i + 1]] != sizes[names[i]]]
    runs = zip([-1, *ends], ends, strict=False)
    blocks = [names[end] for before, end in runs if end - before > 1]
    return blocks or [names[end] for end in ends]
