"""`--device auto|cpu|cuda` → the device, or one line that says why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrant.errors import InputError

if TYPE_CHECKING:
    import torch


def device_of(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown --device {name!r}; use auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no CUDA device; use cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
