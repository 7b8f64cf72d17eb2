"""The feature maps [N, C, H, W] of any network, layer by layer in the order of execution.

By default the layers are the network's building blocks: its children, where torch's containers (Sequential, ModuleList)
stand for theirs, and every smoothing layer that was put in. A layer counts if it gives a map of more than one point.
If another layer hands the very same map on, that one is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.diagnostics.curvature import several
from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.ensemble import evaluating
from calibrant.ensembles.inputs import moved, unpack
from calibrant.errors import InputError, NotApplicableError, unknown
from calibrant.nn.evaluation import device_of
from calibrant.nn.surgery import smoothed


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
def _watching(layers: dict[str, nn.Module], found: dict[str, Tensor]) -> Iterator[None]:
    """Inside, the first map that each layer gives enters `found`."""
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
    """(number of the pass, {layer: map}) of every batch: once without dropout, or once per mask.

    A layer that is used twice counts once. Maps are float32 at least, whatever the network computes in.
    """
    masked = MCDropout(model, masks, seed=seed) if masks else None
    empty = True
    for batch in several(batches):
        empty = False
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
    if empty:
        raise InputError("there are no batches to look at; pass at least one")


def stage_ends(sizes: dict[str, tuple[int, int]]) -> list[str]:
    """The last layer of each run of equally large maps, from {layer: (H, W)} in order; a stem of one layer is none."""
    names = list(sizes)
    ends = [i for i in range(len(names)) if i + 1 == len(names) or sizes[names[i + 1]] != sizes[names[i]]]
    runs = zip([-1, *ends], ends, strict=False)
    blocks = [names[end] for before, end in runs if end - before > 1]
    return blocks or [names[end] for end in ends]
