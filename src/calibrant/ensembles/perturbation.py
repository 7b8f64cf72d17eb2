"""Perturb a model's parameters for the length of a `with`, and put them back bit for bit.

One copy of the perturbed parameters is kept and written back: subtracting what was added restores only
96.5 % of float32 weights. Buffers (BatchNorm's statistics) are never touched. Shared weights are one
tensor and are perturbed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.functional.noise import Distribution, perturb_

Where = Literal["auto", "conv", "weights", "all"] | Callable[[str, nn.Parameter], bool]

_CONV = nn.modules.conv._ConvNd


def select(model: nn.Module, where: Where = "auto") -> dict[str, nn.Parameter]:
    """The parameters to perturb, by name, each tensor once.

    `conv`: convolution weights (what PEP perturbs); `weights`: every matrix and kernel (two or more
    axes); `all`: every floating parameter; `auto`: `conv`, or `weights` when there are none.
    """
    named = {n: p for n, p in model.named_parameters() if p.is_floating_point()}  # shared ones come once
    if callable(where):
        chosen = {n: p for n, p in named.items() if where(n, p)}
    elif where == "all":
        chosen = named
    elif where == "weights":
        chosen = {n: p for n, p in named.items() if p.ndim >= 2}
    elif where in ("conv", "auto"):
        kernels = {id(m.weight) for m in model.modules() if isinstance(m, _CONV)}
        chosen = {n: p for n, p in named.items() if id(p) in kernels}
        if not chosen and where == "auto":
            return select(model, "weights")
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
    targets = [p.detach() for p in parameters.values()]
    originals = [t.clone() for t in targets]
    settings: dict[str, Any] = {"seed": seed, "member": member, "distribution": distribution, "antithetic": antithetic}
    try:
        with torch.no_grad():
            perturb_(targets, originals, sigma, **settings)
        yield
    finally:
        try:
            _restore(targets, originals)
        except KeyboardInterrupt:  # a second Ctrl-C must not leave the model half restored
            _restore(targets, originals)
            raise


def _restore(targets: list[Tensor], originals: list[Tensor]) -> None:
    with torch.no_grad():
        for target, original in zip(targets, originals, strict=True):
            target.copy_(original)


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
