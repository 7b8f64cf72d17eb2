"""Perturb a model's parameters inside a `with`, and restore them bit for bit.

A copy of the perturbed parameters is kept and written back, because subtracting the noise restores only 96.5% of
float32 weights. Buffers (BatchNorm's statistics) are never changed. Shared weights are one tensor and are perturbed
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from calibrant.ensembles.ensemble import module
from calibrant.errors import InputError
from calibrant.functional.noise import Distribution, perturb_

WHERE = ("auto", "conv", "weights", "all")
Where = Literal["auto", "conv", "weights", "all"] | Callable[[str, nn.Parameter], bool]

_CONV = nn.modules.conv._ConvNd


def select(model: nn.Module, where: Where = "auto") -> dict[str, nn.Parameter]:
    """Return the parameters to perturb, by name, each tensor once.

    `conv`: the weights of convolutions, as in the paper; `weights`: every matrix and kernel (two or more axes); `all`:
    every floating parameter; `auto`: `conv` if most layers are convolutions (ResNet, VGG), else `weights` (an MLP, or a
    transformer, whose only convolution cuts the image into patches).
    """
    named = _floating(model)
    kernels = {id(p) for m in model.modules() if isinstance(m, _CONV) for p in _kernel(m)}
    conv = {n: p for n, p in named.items() if id(p) in kernels}
    weights = {n: p for n, p in named.items() if p.ndim >= 2}
    if callable(where):
        chosen = {n: p for n, p in named.items() if where(n, p)}
    elif where == "auto":
        chosen = conv if 2 * len(conv) > len(weights) else weights
    elif where in WHERE:
        chosen = {"conv": conv, "weights": weights, "all": named}[where]
    else:
        raise InputError(
            f"where={where!r} is unknown; use auto, conv, weights, all, or a function (name, parameter) -> bool"
        )
    if not chosen:
        kinds = sorted({type(m).__name__ for m in model.modules() if any(True for _ in m.parameters(recurse=False))})
        raise InputError(
            f"no parameter matches where={where!r}; the model's layers with parameters: {', '.join(kinds) or 'none'}"
        )
    return chosen


def share(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> float:
    """Return the share of the network's floating parameters that is in `parameters`."""
    return sum(p.numel() for p in parameters.values()) / sum(p.numel() for p in _floating(model).values())


def _floating(model: nn.Module) -> dict[str, nn.Parameter]:
    return {n: p for n, p in module(model).named_parameters() if p.is_floating_point()}  # shared ones come once


def _kernel(conv: nn.Module) -> list[nn.Parameter]:
    """Return a convolution's weight or, under weight or spectral norm, the parameters that it is computed from.

    `conv.weight` itself is not read, because computing it in train mode would change the vectors of spectral norm.
    """
    made_of: list[nn.Parameter] = []
    if is_parametrized(conv, "weight"):
        made_of = [p for n, p in conv.named_parameters() if n.startswith("parametrizations.weight.")]
    own = (conv._parameters.get(name) for name in ("weight", "weight_v", "weight_g", "weight_orig"))
    return [*made_of, *(p for p in own if p is not None)]


@contextmanager
def perturbed(
    parameters: Mapping[str, nn.Parameter],
    sigma: float,
    *,
    seed: int,
    member: int,
    distribution: Distribution = "gaussian",
    antithetic: bool = False,
) -> Iterator[None]:
    """Set the parameters to θ + σ·ε(seed, member); restore θ bit for bit, also after an exception or Ctrl-C."""
    if sigma == 0:
        yield
        return
    # `.data` has its own version counter, so an autograd graph made before can still be differentiated afterwards
    targets = [p.data for p in parameters.values()]
    settings: dict[str, Any] = {"seed": seed, "member": member, "distribution": distribution, "antithetic": antithetic}
    with rewritten(targets, lambda originals: perturb_(targets, originals, sigma, **settings)):
        yield


@contextmanager
def rewritten(tensors: Sequence[Tensor], write: Callable[[Sequence[Tensor]], None]) -> Iterator[None]:
    """Let `write` overwrite the tensors, given copies of them; restore them bit for bit afterwards.

    Autocast's cache is cleared, because its casts of the weights would be those of another member."""
    originals = [t.clone() for t in tensors]
    try:
        with torch.no_grad():
            write(originals)
        torch.clear_autocast_cache()
        yield
    finally:
        try:
            _restore(tensors, originals)
        except KeyboardInterrupt:  # a second Ctrl-C must not leave the model half restored
            _restore(tensors, originals)
            raise


def _restore(tensors: Sequence[Tensor], originals: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, original in zip(tensors, originals, strict=True):
            tensor.copy_(original)
    torch.clear_autocast_cache()


def precision_note(parameters: Mapping[str, nn.Parameter], sigma: float) -> str | None:
    """Return a note if the weights are too coarse for the noise, or None."""
    half = {p.dtype for p in parameters.values()} & {torch.float16, torch.bfloat16}
    if not half or sigma == 0 or (share := changed_share(parameters, sigma)) >= 0.9:
        return None
    name = str(half.pop()).removeprefix("torch.")
    return f"only {share:.0%} of the {name} weights change at σ = {sigma:.2g}: use float32 weights"


def changed_share(parameters: Mapping[str, nn.Parameter], sigma: float) -> float:
    """Return the share of the numbers that one draw of noise changes. It is low in bf16 and fp16."""
    changed = total = 0
    originals = [p.detach() for p in parameters.values()]
    targets = [torch.empty_like(t) for t in originals]
    with torch.no_grad():
        perturb_(targets, originals, sigma, seed=0, member=0)
        for t, o in zip(targets, originals, strict=True):
            changed += int((t != o).sum())
            total += t.numel()
    return changed / total
