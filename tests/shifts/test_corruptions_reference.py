"""Pixel by pixel against an independent implementation in numpy, scipy and Pillow that is handed the same numbers.

So the size of the effect, its spectrum and what a classifier makes of it are the reference's too. Frost, whose
published pictures are not here, has its own test.
"""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.shifts import SEVERITIES, SHIFTS, corrupt
from tests.shifts.pictures import pictures
from tests.shifts.replay import replay
from tests.shifts.shifts_reference import apply

NAMES = [name for name in SHIFTS if name != "frost"]

SHARE_OFF_BY_ONE = {"glass_blur": 0.03, "contrast": 0.02, "defocus_blur": 0.1}
"""Share of bytes that may be a step off. These three leave many values within 0.0001 of a whole number (weights of
0.0003 or 1 / 5), where float32 and float64 cut down differently."""


@pytest.mark.parametrize("name", NAMES)
def test_32(name: str) -> None:
    for severity in range(1, SEVERITIES + 1):
        check(name, severity, 32, 3)


@pytest.mark.parametrize("name", NAMES)
def test_larger_images_take_the_constants_for_224(name: str) -> None:
    """Glass blur is tested on smaller images, because its reference is slow."""
    for severity in (2, 5) if name == "glass_blur" else (1, 4):
        check(name, severity, 98 if name == "glass_blur" else 128, 1)


def check(name: str, severity: int, side: int, n: int) -> None:
    x = pictures(n, side, side, seed=1)
    constant = SHIFTS[name].strengths[32 if side == 32 else 224][severity - 1]
    ours = corrupt(x, name, severity, seed=5, index=40).permute(0, 2, 3, 1).numpy().astype(int)
    rounds = constant[2] if name == "glass_blur" else 1
    theirs = [
        apply(
            name,
            x[i].permute(1, 2, 0).numpy(),
            constant,
            replay(name, severity, side, side, seed=5, item=40 + i, rounds=rounds),
        )
        for i in range(n)
    ]
    off = np.abs(ours - np.stack(theirs))
    if name == "jpeg_compression":  # a coefficient on the edge moves its block by a step of the table
        change = np.abs(x.permute(0, 2, 3, 1).numpy() - np.stack(theirs).astype(int)).mean()
        assert off.mean() < 0.3 and off.mean() < 0.1 * change
        return
    if name == "shot_noise":  # a uniform number on the edge of a count, in float32
        assert (off > 0).mean() < 1e-4
        return
    assert off.max() <= 1
    assert (off > 0).mean() <= SHARE_OFF_BY_ONE.get(name, 0.002)


@pytest.mark.parametrize(("h", "w"), [(8, 8), (16, 12), (9, 17), (20, 20), (28, 28), (34, 34), (32, 40), (96, 100)])
def test_jpeg_of_any_size_is_pillows(h: int, w: int) -> None:
    """Blocks of colour cover 16 pixels, so an error in extending a row shows in its whole last block."""
    import io

    from PIL import Image

    from calibrant.shifts.jpeg import jpeg

    x = pictures(12, h, w, seed=2)
    off = []
    for made, image in zip(jpeg(x.float(), 50).clamp(0, 255).floor(), x, strict=True):
        held = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(held, "JPEG", quality=50)
        off.append(np.abs(made.permute(1, 2, 0).numpy() - np.asarray(Image.open(held), dtype=float)).mean())
    assert np.mean(off) < 0.25
