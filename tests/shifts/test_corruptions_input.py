"""What a user can get wrong with images and names, and the one line that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from calibrant.errors import CalibrantError
from calibrant.shifts import PERTURBATIONS, SHIFTS, FrequencyNoise, accuracy_against_frequency, corrupt, perturb

IMAGES = torch.zeros(2, 3, 32, 32)
ANY: Any = IMAGES
"""Images where a test passes something of the wrong type beside them."""

MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: corrupt(IMAGES, "gausian_noise", 1), "corruption 'gausian_noise'; did you mean 'gaussian_noise'"),
    (lambda: corrupt(255 * torch.rand(2, 3, 8, 8), "fog", 1), r"lie in \[0, 1\], got .*; divide by 255 or pass uint8"),
    (lambda: corrupt(torch.randn(2, 3, 32, 32), "fog", 1), "undo mean and std first"),
    (lambda: corrupt(IMAGES + torch.nan, "fog", 1), r"must lie in \[0, 1\], got NaN or infinity"),
    (lambda: corrupt(IMAGES[0], "fog", 1), r"one image is x\[None\]"),
    (lambda: corrupt(IMAGES.permute(0, 2, 3, 1), "fog", 1), "permute channels"),
    (lambda: corrupt(torch.zeros(2, 4, 32, 32), "fog", 1), "1 or 3 channels"),
    (lambda: corrupt(IMAGES[:, :, :4], "fog", 1), "images of 4 × 32 are too small; corruptions need 8 × 8"),
    (lambda: corrupt(IMAGES.long(), "fog", 1), "must be uint8 or floating"),
    (lambda: corrupt(IMAGES.bool(), "fog", 1), "must be uint8 or floating"),
    (lambda: corrupt(ANY.numpy(), "fog", 1), "must be a torch tensor, got ndarray; torch.as_tensor"),
    *((lambda s=s: corrupt(ANY, "fog", s), "severity must be a whole number") for s in (-1, 6, 3.0, True, "3")),
    *((lambda s=s: corrupt(ANY, "fog", 1, s), "a seed is a whole number") for s in ("a", 1.5, None)),
    *(
        (lambda i=i: corrupt(ANY, "fog", 1, index=i), "index must name the 2 items by whole numbers")
        for i in (torch.arange(3), torch.zeros(2), torch.tensor([True, False]))
    ),
    (lambda: SHIFTS["contrast"](size=64), "published for size 32 and 224, not 64"),
    *((lambda n=n: perturb(ANY, "tilt", n), "a sequence needs at least two frames") for n in (1, 2.5, True)),
    (lambda: perturb(IMAGES, "rotat"), "unknown perturbation 'rotat'; did you mean 'rotate'"),
    (lambda: perturb(255 * torch.rand(2, 3, 8, 8), "rotate"), "divide by 255"),
    (lambda: PERTURBATIONS["gaussian_noise"](difficulty=4), "difficulties are 1, 2 and 3"),
    (lambda: FrequencyNoise(3.14)(IMAGES, 0), "must lie in 0 … 1"),
    (lambda: FrequencyNoise(0.5, sigma=-1), "must not be negative"),
    (lambda: accuracy_against_frequency(lambda x: x, IMAGES, torch.zeros(3)), "one label per image"),
]


@pytest.mark.parametrize(("mistake", "says"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(mistake: Callable[[], object], says: str) -> None:
    with pytest.raises(CalibrantError, match=says):
        mistake()


def test_constants_can_be_forced_to_a_published_size() -> None:
    x = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    small, large = SHIFTS["contrast"](size=32)(x, 1, 0), SHIFTS["contrast"](size=224)(x, 1, 0)
    assert torch.equal(small, corrupt(x, "contrast", 1))
    assert large.std() < small.std()
