"""Noise on parameters that is never stored: a member is a seed, and its noise is drawn again when needed.

Uniform noise has the variance of the Gaussian (width ±√3·σ), because PEP does not give its width. Antithetic members
come in pairs of opposite sign. This cancels the odd terms of L(σ), so that L is smooth in σ with few members.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

Distribution = Literal["gaussian", "uniform"]
DISTRIBUTIONS = ("gaussian", "uniform")


def member_seed(seed: int, member: int) -> int:
    """A 63-bit seed that depends only on these two numbers."""
    digest = hashlib.sha256(f"calibrant member {seed} {member}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def perturb_(
    targets: Iterable[Tensor],
    originals: Iterable[Tensor],
    sigma: float,
    *,
    seed: int,
    member: int,
    distribution: Distribution = "gaussian",
    antithetic: bool = False,
) -> None:
    """Write originals + σ·noise into `targets`, one tensor at a time and without a third copy.

    For a reduced precision the noise is drawn in float32 and rounded once, so that a bf16 model gets the same noise as
    its float32 version.
    """
    sign = -1.0 if antithetic and member % 2 else 1.0
    key = member_seed(seed, member // 2 if antithetic else member)
    generators: dict[torch.device, torch.Generator] = {}
    counter = 0
    for target, original in zip(targets, originals, strict=True):
        kernel = _kernel() if target.is_cuda else None
        if kernel is not None and kernel.fits(target, original):
            counter = kernel.perturb(
                target, original, sign * sigma, key & 0x7FFFFFFF, counter, distribution == "uniform"
            )
            continue
        device = target.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(key)
        small = target.dtype in (torch.float16, torch.bfloat16)
        # drawn in the order of the indices, not of memory, so that channels_last does not change the noise
        apart = small or not target.is_contiguous()
        kind = torch.float32 if small else target.dtype
        noise = torch.empty(target.shape, dtype=kind, device=device) if apart else target
        if distribution == "gaussian":
            noise.normal_(0.0, 1.0, generator=generators[device])
        else:
            noise.uniform_(-math.sqrt(3), math.sqrt(3), generator=generators[device])
        noise.mul_(sign * sigma).add_(original)
        if apart:
            target.copy_(noise)


@functools.cache
def _kernel() -> ModuleType | None:
    """The fused kernel where Triton is installed (it comes with CUDA builds of PyTorch)."""
    if find_spec("triton") is None:
        return None
    return import_module("calibrant.functional.noise_kernel")
