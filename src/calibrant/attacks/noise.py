"""How far the logits of one forward pass may be from those of the next, and the margin that a success needs for it.

A kernel is chosen for the batch it gets, and sums in its own order; on CUDA convolutions round their operands to TF32
unless they are told not to. So an item that a millionth of its logits makes a success in one batch is none in another.
The noise is measured, at points of the item's own: the same points once more among other rows, in smaller batches and
without TF32. A margin is the difference of two logits, so what counts is the range of the change over the classes.

    slack = max( TIMES · max_points (max_k Δz_k − min_k Δz_k),   unit · (max_k z_k − min_k z_k) + 2 ulp · max_k |z_k| )

The floor is for what two passes agree on by chance, and for a small batch whose kernel does not round as those of large
ones do; it is small beside the distance (a hundredth of a per cent, on CUDA a quarter of one), and where it decides,
the slack does not depend on what else is in the batch. With two or three classes all logits are alike at a boundary;
there pixels are shaken by a few units in the last place to tell how large the rounding in the network is (`shaken`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from calibrant.attacks.field import FEWEST, Field

TIMES = 3.0
UNIT = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
TF32_UNIT = 2**-10
"""Of the logits' range, on CUDA. TF32 in the convolutions of a small network changes logits by half a thousandth of it
(median of adversarial points; 99 of 100: 1.25), and not every batch size has a kernel that shows it."""
FEW_CLASSES = 4
"""With fewer, the range over the classes is of too few numbers to be trusted at two points."""
SHAKES, SHAKEN = 3, 4.0
"""How often pixels are shaken then, and by how many units in the last place: at the boundary of two classes the range
is nothing, and one row alone has a kernel that no batch shows (a product with one row is no matrix product)."""


def places(classes: int) -> tuple[float, ...]:
    """Where on the way to a point the noise is measured, besides the input itself (`around`) and where the search for
    it ends (`boundary.firm`)."""
    return () if classes >= FEW_CLASSES else (1.0, 0.97, 0.93, 0.9)


def coarse(field: Field, device: torch.device) -> bool:
    """Is the unit much more than float32's own?"""
    return _unit(field, device) > 100 * UNIT[torch.float32]


def _unit(field: Field, device: torch.device) -> float:
    dtype = _dtype(field, device)
    return TF32_UNIT if device.type == "cuda" and dtype == torch.float32 else UNIT.get(dtype, UNIT[torch.float32])


def _dtype(field: Field, device: torch.device) -> torch.dtype:
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else field.dtype


def slack(field: Field, points: Sequence[Tensor], seen: Tensor) -> Tensor:
    """[N]: what the margin of a success must exceed. `seen`: the logits at the first of the points."""
    dtype, unit = _dtype(field, seen.device), _unit(field, seen.device)
    floor = unit * (seen.amax(-1) - seen.amin(-1)) + 2 * torch.finfo(dtype).eps * seen.abs().amax(-1)
    if field.drawn:  # another batch has other masks: no noise, but another predictor
        return floor
    for number, point in enumerate(points):
        change = again(field, point, FEWEST + 3 + number) - (field.logits(point) if number else seen)
        floor = torch.maximum(floor, TIMES * (change.amax(-1) - change.amin(-1)))
    if seen.shape[1] < FEW_CLASSES and dtype in (torch.float32, torch.float64):
        for seed in range(SHAKES):
            change = field.logits(field.bounds.clip(shaken(points[0], dtype, seed))) - seen
            floor = torch.maximum(floor, TIMES * (change.amax(-1) - change.amin(-1)))
    return floor


def shaken(pixel: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """Every pixel a little up or down, in the same way in each item."""
    rng = torch.Generator().manual_seed(seed)
    sign = (2 * torch.randint(2, pixel.shape[1:], generator=rng) - 1).to(pixel)
    return pixel * (1 + SHAKEN * torch.finfo(dtype).eps * sign)


def around(field: Field, origin: Tensor, clean: Tensor, batch: int) -> Tensor:
    """[N]: the slack at the inputs themselves, in batches of all of them; a few looked at apart may hide it."""
    parts = zip(torch.split(origin, batch), torch.split(clean, batch), strict=True)
    return torch.cat([slack(field, [part], logits) for part, logits in parts])


def again(field: Field, pixel: Tensor, others: int) -> Tensor:
    """Logits as somebody else would compute them: rows turned round, in two batches, behind others, without TF32."""
    parts = torch.split(pixel.flip(0), (len(pixel) + 1) // 2)
    with strict(pixel.device):
        # an item alone is filled up with itself in every pass; only behind others does it stand in another batch
        turned = [field.logits(torch.cat([part[:1].expand(others, *part.shape[1:]), part]))[others:] for part in parts]
    return torch.cat(turned).flip(0)


@contextmanager
def strict(device: torch.device) -> Iterator[None]:
    """Inside, float32 is float32 on CUDA; the settings are as before afterwards."""
    if device.type != "cuda":
        yield
        return
    backends: Any = torch.backends
    owners = (backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul)
    held = [owner.fp32_precision for owner in owners]
    try:
        for owner in owners:
            owner.fp32_precision = "ieee"
        yield
    finally:
        for owner, precision in zip(owners, held, strict=True):
            owner.fp32_precision = precision
