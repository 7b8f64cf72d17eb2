"""Put networks into eval mode, and restore the mode of every module afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def evaluation(*networks: nn.Module) -> Iterator[None]:
    """Put the networks into eval mode inside the `with`.

    The flags are set directly, because a module's own `train(mode)` may merge weights or freeze layers, which could not
    be undone."""
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
        if m.training is not training:  # setting an attribute of a module is slow
            m.training = training


def device_of(networks: Iterable[Any], default: torch.device | str = "cpu") -> torch.device:
    """Return the device of the first tensor of these networks, or `default` if there is none."""
    for network in networks:
        if isinstance(network, nn.Module):
            for tensor in (*network.parameters(), *network.buffers()):
                return tensor.device
    return torch.device(default)
