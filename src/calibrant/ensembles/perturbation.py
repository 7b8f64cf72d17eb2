"""Perturb a model's parameters for the length of a `with`, and put them back bit for bit.

One copy of the perturbed parameters is kept and written back: subtracting what was added restores only
96.5 % of float32 weights. Buffers (BatchNorm's statistics) are never touched. Shared weights are one
tensor and are perturbed once.
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
    """The parameters to perturb, by name, each tensor once.

    `conv`: convolution weights (what PEP perturbs); `weights`: every matrix and kernel (two or more
    axes); `all`: every floating parameter; `auto`: `conv` where most layers are convolutions (ResNet, VGG), and
    `weights` elsewhere (an MLP, or a transformer, whose one convolution cuts the image into patches).
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
    """How much of the network is perturbed: numbers in `parameters` over all floating parameters."""
    return sum(p.numel() for p in parameters.values()) / sum(p.numel() for p in _floating(model).values())


def _floating(model: nn.Module) -> dict[str, nn.Parameter]:
    return {n: p for n, p in module(model).named_parameters() if p.is_floating_point()}  # shared ones come once


def _kernel(conv: nn.Module) -> list[nn.Parameter]:
    """What the weight is, or, under weight or spectral norm, what it is made of.

    `conv.weight` itself is not read: computing it in train mode would move spectral norm's vectors.
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
    """Inside: θ + σ·ε(seed, member). Afterwards, also after an exception or Ctrl-C: θ, bit for bit."""
    if sigma == 0:
        yield
        return
    # `.data` has a version of its own: a graph that was made before may still be differentiated afterwards
    targets = [p.data for p in parameters.values()]
    settings: dict[str, Any] = {"seed": seed, "member": member, "distribution": distribution, "antithetic": antithetic}
    with rewritten(targets, lambda originals: perturb_(targets, originals, sigma, **settings)):
        yield


@contextmanager
def rewritten(tensors: Sequence[Tensor], write: Callable[[Sequence[Tensor]], None]) -> Iterator[None]:
    """Inside, the tensors are what `write` made of copies of them; afterwards what they were, bit for bit.

    The caller's autocast keeps casts of weights, which would be those of another member."""
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


def drowned(parameters: Mapping[str, nn.Parameter], sigma: float) -> str | None:
    """What to say when the weights' precision swallows the noise, or None."""
    half = {p.dtype for p in parameters.values()} & {torch.float16, torch.bfloat16}
    if not half or sigma == 0 or (share := resolution(parameters, sigma)) >= 0.9:
        return None
    name = str(half.pop()).removeprefix("torch.")
    return f"only {share:.0%} of the {name} weights change at σ = {sigma:.2g}: use float32 weights"


def resolution(parameters: Mapping[str, nn.Parameter], sigma: float) -> float:
    """Share of the perturbed numbers that one draw of noise actually changes: low in bf16 and fp16."""
    changed = total = 0
    originals = [p.detach() for p in parameters.values()]
    targets = [torch.empty_like(t) for t in originals]
    with torch.no_grad():
        perturb_(targets, originals, sigma, seed=0, member=0)
        for t, o in zip(targets, originals, strict=True):
            changed += int((t != o).sum())
            total += t.numel()
    return changed / total
