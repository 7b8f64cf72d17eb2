"""Initialisation from a seed that leaves the global generator as it was found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's CPU generator starts at `seed` and modules are made on the CPU; outside, nothing has changed.

    Only the CPU generator is touched: `torch.manual_seed` would reseed every GPU too, and not put them back.
    """
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.default_generator.set_state(before)


def he(model: nn.Module) -> None:
    """He-normal convolutions (fan out, ReLU); the rest keeps torch's own initialisation."""
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
