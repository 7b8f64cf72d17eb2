"""What CUDA needs for speed: a step as one graph, and a network laid out for half precision.

A step of a small network is bound by kernel launches; captured once for a number of slots, it is replayed at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from calibrant.attacks.field import HALF
from calibrant.attacks.task import State
from calibrant.errors import InputError

WARM_STEPS = 3
"""Eager steps on a side stream before capture: libraries choose algorithms and allocate workspaces in them."""
_MATRICES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class Captured:
    """One step recorded as a CUDA graph over buffers of its own."""

    def __init__(self, step: Callable[[State], State], rows: State) -> None:
        self.buffers = {name: values.clone() for name, values in rows.items()}
        device = rows["done"].device
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_STEPS):
                step(self.buffers)
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph):
                for name, values in step(self.buffers).items():
                    if values is not self.buffers[name]:
                        self.buffers[name].copy_(values)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"this model cannot be captured as a CUDA graph ({reason}); use engine='eager'") from error

    def fill(self, rows: State) -> State:
        for name, values in rows.items():
            self.buffers[name].copy_(values)
        return self.buffers

    def replay(self) -> State:
        self.graph.replay()
        return self.buffers


def fast_copy(predictor: Any, *, compiled: bool) -> Any:
    """A frozen copy with matrices in half precision and channels last, for gradients; what is no network, as it is."""
    if not isinstance(predictor, nn.Module):
        return predictor
    network = copy.deepcopy(predictor).eval().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, _MATRICES):  # autocast would cast them at every step; norms stay in float32
            module.to(HALF)
    if any(isinstance(module, nn.Conv2d) for module in network.modules()):
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return torch.compile(network) if compiled else network
