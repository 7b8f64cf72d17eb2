"""A step must be recordable as a CUDA graph. Checked without CUDA on the device `meta`, where tensors have no values.

Whatever reads a number from the device (`item`, `bool`, a mask as an index) or mixes it with a tensor of the host fails
there, as it would while a graph is recorded.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.attacks import ATTACKS, Bounds
from calibrant.attacks.attack import Attack
from calibrant.attacks.gradients import PixelModel
from calibrant.attacks.loop import Loop
from calibrant.attacks.task import State, Task

ITEMS = 16


def stepped(attack: Attack, *, targeted: bool) -> tuple[State, State]:
    """Return the rows before and after two steps on the device, taken as the loop takes them."""
    device = torch.device("meta")
    first, last = nn.Conv2d(1, 4, 3, device=device), nn.Linear(144, 5, device=device)
    model = nn.Sequential(first, nn.ReLU(), nn.Flatten(), last).eval().requires_grad_(False)
    loop = Loop(attack, PixelModel(model, attack.bounds, torch.float32), device)
    origin = torch.empty(ITEMS, 1, 8, 8, device=device)
    reference, done = (torch.empty(ITEMS, dtype=dtype, device=device) for dtype in (torch.long, torch.bool))
    task = Task(origin, reference, torch.empty(ITEMS, device=device), attack.bounds, targeted)
    rows = loop._initial(task, done)
    return rows, loop._step(loop._step(rows, targeted), targeted)


def attacks() -> list[Attack]:
    bounds = Bounds(mean=(0.3,), std=(0.4,))
    return [made(bounds=bounds) for made in ATTACKS.values()]


@pytest.mark.parametrize("targeted", [False, True], ids=["away", "towards"])
@pytest.mark.parametrize("attack", attacks(), ids=list(ATTACKS))
def test_a_step_stays_on_its_device_and_keeps_its_shapes(attack: Attack, targeted: bool) -> None:
    """Buffers of a graph are written in place, so each row must keep its shape, type and device."""
    before, after = stepped(attack, targeted=targeted)
    assert set(after) == set(before)
    for name, values in after.items():
        kept = before[name]
        assert (values.shape, values.dtype, values.device) == (kept.shape, kept.dtype, kept.device), name
