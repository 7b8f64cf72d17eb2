"""The feature maps [N, C, H, W] of any network, layer by layer in the order of execution.

By default the layers are the network's building blocks and every smoothing layer that was inserted. Building blocks
are the network's children; a torch container (Sequential, ModuleList) is replaced by its own children. A layer counts
if its output is a map of more than one point. A layer that only passes on the map of the layer before is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.diagnostics.batches import each_batch
from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.ensemble import evaluating
from calibrant.ensembles.inputs import moved, unpack
from calibrant.errors import NotApplicableError, unknown
from calibrant.nn.evaluation import device_of
from calibrant.nn.surgery import smoothed


@dataclass(frozen=True, eq=False)
class ByLayer:
    """What all measurements of feature maps have in common: the layers, in the order of execution."""

    sizes: dict[str, tuple[int, int]]  # layer → height and width of its maps

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers."""
        return tuple(self.sizes)

    @property
    def ends(self) -> list[str]:
        """The layers that end a stage: a run of equally large maps."""
        return stage_ends(self.sizes)


def layers_of(model: nn.Module, names: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """Return name → module, for these names or for the building blocks."""
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
def _watching(layers: dict[str, nn.Module], found: dict[str, Tensor]) -> Iterator[None]:
    """Inside, the first map of each layer is stored in `found`."""
    last: list[Any] = [None]

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def see(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2:].numel() > 1:
                if output is not last[0]:
                    found.setdefault(name, output.detach())
                last[0] = output

        return see

    handles = [module.register_forward_hook(hook(name)) for name, module in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def passes(
    model: nn.Module, batches: Iterable[Any], layers: dict[str, nn.Module], *, masks: int = 0, seed: int = 0
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (number of the pass, {layer: map}) for every batch: one pass without dropout, or one per mask.

    A layer that is called twice in a pass gives its first map. Maps are float32 or float64, whatever the network
    computes in.
    """
    masked = MCDropout(model, masks, seed=seed) if masks else None
    for batch in each_batch(batches):
        args, kwargs, *_ = moved(unpack(batch), device_of([model]))
        for j in range(masks or 1):
            found: dict[str, Tensor] = {}
            member = evaluating(model) if masked is None else masked.member(j)
            with torch.no_grad(), member as network, _watching(layers, found):
                network(*args, **kwargs)
            if not found:
                raise NotApplicableError(
                    f"{type(model).__name__} has no feature maps [N, C, H, W] at these layers; variance and Fourier "
                    "analysis are for convolutional networks"
                )
            yield j, {name: z.to(torch.promote_types(z.dtype, torch.float32)) for name, z in found.items()}


def stage_ends(sizes: dict[str, tuple[int, int]]) -> list[str]:
    """Return the last layer of each run of equally large maps, from {layer: (H, W)}; a run of one layer is no stage."""
    names = list(sizes)
    ends = [i for i in range(len(names)) if i + 1 == len(names) or sizes[names[i + 1]] != sizes[names[i]]]
    runs = zip([-1, *ends], ends, strict=False)
    blocks = [names[end] for before, end in runs if end - before > 1]
    return blocks or [names[end] for end in ends]
