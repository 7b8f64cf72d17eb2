"""What a user can get wrong with images and names, and the one line that says so."""

from __future__ import annotations

import pytest
import torch

from calibrant.errors import InputError, UnknownNameError
from calibrant.shifts import SHIFTS, corrupt, perturb

IMAGES = torch.zeros(2, 3, 32, 32)


def test_unknown_corruption_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown corruption 'gausian_noise'; did you mean 'gaussian_noise'"):
        corrupt(IMAGES, "gausian_noise", 1)


def test_floats_up_to_255_are_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"must lie in \[0, 1\], got 0 … 255; divide by 255 or pass uint8"):
        corrupt(torch.linspace(0, 255, 2 * 3 * 32 * 32).view(2, 3, 32, 32), "fog", 1)


def test_normalised_images_are_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match="got -1 … 1; undo mean and std first"):
        corrupt(torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32), "fog", 1)


def test_not_a_number_is_refused() -> None:
    with pytest.raises(InputError, match=r"must lie in \[0, 1\], got NaN or infinity"):
        corrupt(IMAGES.clone().fill_(float("nan")), "fog", 1)


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((3, 32, 32), r"one image is x\[None\]"),
        ((2, 32, 32, 3), "permute channels"),
        ((2, 4, 32, 32), "1 or 3 channels"),
    ],
)
def test_shapes(shape: tuple[int, ...], hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        corrupt(torch.zeros(shape), "fog", 1)


def test_images_too_small() -> None:
    with pytest.raises(InputError, match="images of 4 × 32 are too small; corruptions need 8 × 8"):
        corrupt(torch.zeros(1, 3, 4, 32), "defocus_blur", 1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match="must be uint8 or floating"):
        corrupt(IMAGES.to(dtype), "fog", 1)


@pytest.mark.parametrize("severity", [-1, 6, 2.5, 3.0, True, "3"])
def test_severities(severity: int) -> None:
    with pytest.raises(InputError, match="severity must be a whole number in 0 … 5"):
        corrupt(IMAGES, "fog", severity)


@pytest.mark.parametrize("index", [torch.arange(3), torch.zeros(2), torch.tensor([True, False])])
def test_index_must_name_the_items(index: torch.Tensor) -> None:
    with pytest.raises(InputError, match="index must name the 2 items by whole numbers"):
        corrupt(IMAGES, "fog", 1, index=index)


def test_constants_can_be_forced_to_a_published_size() -> None:
    x = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    small, large = SHIFTS["contrast"](size=32)(x, 1, 0), SHIFTS["contrast"](size=224)(x, 1, 0)
    assert torch.equal(small, corrupt(x, "contrast", 1))
    assert large.std() < small.std()
    with pytest.raises(InputError, match="published for size 32 and 224, not 64"):
        SHIFTS["contrast"](size=64)


def test_arrays_are_told_how_to_become_tensors() -> None:
    with pytest.raises(InputError, match=r"must be a torch tensor, got ndarray; torch.as_tensor"):
        corrupt(IMAGES.numpy(), "fog", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", ["a", 1.5, None])
def test_seeds(seed: int) -> None:
    with pytest.raises(InputError, match="a seed is a whole number"):
        corrupt(IMAGES, "fog", 1, seed)


@pytest.mark.parametrize("frames", [1, 2.5, True])
def test_frames(frames: int) -> None:
    with pytest.raises(InputError, match="a sequence needs at least two frames"):
        perturb(IMAGES, "tilt", frames)
