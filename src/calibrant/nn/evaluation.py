"""Run somebody's network and leave it as it was: eval mode inside, every module back in its own mode afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def evaluation(*networks: nn.Module) -> Iterator[None]:
    """Modes are set as flags: what a module does in its own `train(mode)` (merge weights, freeze layers) could not be
    undone from outside."""
    modes = [(m, m.training) for network in networks for m in network.modules()]
    try:
        _set((m, False) for m, _ in modes)
        yield
    finally:
        try:
            _set(modes)
        except KeyboardInterrupt:  # the remaining modules must not stay in eval mode
            _set(modes)
            raise


def _set(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    for m, training in modes:
        if m.training is not training:  # a module's attributes are slow to set
            m.training = training


def device_of(networks: Iterable[Any], default: torch.device | str = "cpu") -> torch.device:
    """Where the first tensor of these networks is; what is no network has none."""
    for network in networks:
        if isinstance(network, nn.Module):
            for tensor in (*network.parameters(), *network.buffers()):
                return tensor.device
    return torch.device(default)
