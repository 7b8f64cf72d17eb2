"""Perturbation sequences: laws over `PERTURBATIONS`, and frames against Pillow, scipy and numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from calibrant.shifts import PERTURBATIONS, perturb
from calibrant.shifts.random_numbers import Draws, draws
from tests.shifts.pictures import pictures
from tests.shifts.shifts_reference import Array, blurred, brightness, motioned, zoomed
from tests.shifts.shifts_water import sheen

NAMES = list(PERTURBATIONS)
NOISE = {"gaussian_noise", "shot_noise", "speckle_noise"}
RANDOM = {*NOISE, "snow", "spatter"}


@pytest.fixture(autouse=True)
def global_state_untouched() -> Iterator[None]:
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return pictures(4)


def numpy_image(x: torch.Tensor) -> Array:
    return x.permute(1, 2, 0).numpy()


def numbers(name: str, item: int) -> Draws:
    return draws(0, f"{name} sequence", 1, 1, torch.device("cpu"), item)


@pytest.mark.parametrize("name", NAMES)
def test_shape_range_and_dtype(name: str, x: torch.Tensor) -> None:
    published = {"motion_blur": 21, "translate": 16}.get(name, 31)
    y = perturb(x, name)
    assert y.shape == (published, *x.shape) and y.dtype == torch.uint8
    real = perturb(x[:1] / 255, name, 3)
    assert real.shape == (3, 1, *x.shape[1:]) and real.dtype == torch.float32
    assert real.min() >= 0 and real.max() <= 1
    assert perturb(pictures(2, 9, 40, channels=1), name, 4).shape == (4, 2, 1, 9, 40)


@pytest.mark.parametrize("name", NAMES)
def test_randomness_is_by_item_and_seed(name: str, x: torch.Tensor) -> None:
    y = perturb(x, name, 5)
    assert torch.equal(torch.cat([perturb(x[:1], name, 5), perturb(x[1:], name, 5, index=1)], dim=1), y)
    assert torch.equal(y, perturb(x, name, 5, seed=1)) == (name not in RANDOM)


@pytest.mark.parametrize("name", sorted(NOISE))
def test_noise_starts_from_the_clean_image_and_grows_with_difficulty(name: str, x: torch.Tensor) -> None:
    change = []
    for difficulty in (1, 2, 3):
        y = PERTURBATIONS[name](difficulty=difficulty)(x, 4, 0)
        assert torch.equal(y[0], x) and PERTURBATIONS[name].unordered
        assert not torch.equal(y[1], y[2])
        change.append(float((y[1:].float() - x.float()).abs().mean()))
    assert change[0] < change[1] < change[2]


def pillow(image: Array, forward: Array) -> Array:
    """The image under a linear map about the pixel (w / 2, h / 2)."""
    h, w = image.shape[:2]
    back = np.linalg.inv(forward)
    middle = np.array([w / 2 + 0.5, h / 2 + 0.5])
    offset = middle - back @ middle
    matrix = (*back[0], offset[0], *back[1], offset[1])
    moved = Image.fromarray(image).transform((w, h), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    return np.asarray(moved).astype(int)


def turn(degrees: float) -> Array:
    a = math.radians(degrees)
    return np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])


@pytest.mark.parametrize("i", [0, 9, 15, 22, 30])
def test_affine_frames_are_pillows(i: int, x: torch.Tensor) -> None:
    image = numpy_image(x[2])
    slant = math.radians(i - 15)
    shear = np.array([[1, -math.sin(slant)], [0, math.cos(slant)]])  # torchvision's
    maps = {"rotate": turn(i - 15), "scale": np.eye(2) * (0.7 + 0.02 * i), "shear": shear}
    for name, forward in maps.items():
        off = np.abs(numpy_image(perturb(x, name)[i, 2]) - pillow(image, forward))
        assert off.max() <= 1 and (off > 0).mean() < 0.03, name


def test_translate_moves_by_whole_pixels(x: torch.Tensor) -> None:
    y = perturb(x, "translate")
    assert torch.equal(y[7], x)
    assert torch.equal(y[0, ..., :-7], x[..., 7:]) and (y[0, ..., -7:] == 0).all()
    assert torch.equal(y[15, ..., 8:], x[..., :-8]) and (y[15, ..., :8] == 0).all()


def test_tilt_is_the_published_homography(x: torch.Tensor) -> None:
    h = w = 32
    for i in (0, 15, 28):
        a = np.deg2rad(0.75 * (i - 15))
        f = np.hypot(h, w)
        flat = np.array([[1, 0, -w / 2], [0, 1, -h / 2], [0, 0, 1], [0, 0, 1]])
        rx = np.array([[1, 0, 0, 0], [0, np.cos(a), -np.sin(a), 0], [0, np.sin(a), np.cos(a), 0], [0, 0, 0, 1]])
        ry = np.array([[np.cos(a), 0, -np.sin(a), 0], [0, 1, 0, 0], [np.sin(a), 0, np.cos(a), 0], [0, 0, 0, 1]])
        away = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, f], [0, 0, 0, 1]])
        camera = np.array([[f, 0, w / 2, 0], [0, f, h / 2, 0], [0, 0, 1, 0]])
        back = np.linalg.inv(camera @ away @ rx @ ry @ flat)
        columns, rows = np.meshgrid(np.arange(w), np.arange(h))
        u, v, s = np.einsum("ij,jhw->ihw", back, np.stack([columns, rows, np.ones((h, w))]))
        for c in range(3):
            image = np.pad(x[1, c].numpy().astype(float), 1)
            expected = ndimage.map_coordinates(image, [v / s + 1, u / s + 1], order=1, mode="constant")
            assert np.abs(perturb(x, "tilt")[i, 1, c].numpy() - np.floor(expected + 0.5)).max() <= 1
            assert np.abs(perturb(x, "tilt")[i, 1, c].numpy() - np.floor(expected + 0.5)).mean() < 0.01


def test_light_frames_are_the_references(x: torch.Tensor) -> None:
    image = numpy_image(x[3]) / 255.0

    def check(name: str, i: int, expected: Array, share: float = 0.02) -> None:
        off = np.abs(numpy_image(perturb(x, name)[i, 3]) - np.floor(np.clip(expected, 0, 1) * 255 + 1e-6))
        assert off.max() <= 1 and (off > 0).mean() < share, name

    for i in (0, 12, 20):
        check("motion_blur", i, np.round(255 * motioned(image, 6, 1.8, (i - 20) * 9)) / 255)
        check("brightness", i, brightness(image, (i - 15) * 0.015, None))  # type: ignore[arg-type]
        check("gaussian_blur", i, blurred(image, 0.3 + 0.015 * i, truncate=7.0), share=0.1)
    layer = zoomed(0.05 + 0.3 * numbers("snow", 3).normal(32, 32)[0].double().numpy(), 2)
    layer[layer < 0.5] = 0
    layer = np.floor(np.clip(layer, 0, 1) * 255) / 255
    for i in (0, 30):
        fallen = np.round(255 * motioned(layer, 10, 2, i * 4 - 150))[..., None] / 255
        white = np.maximum(image, (image @ [0.299, 0.587, 0.114])[..., None] * 1.5 + 0.5)
        check("snow", i, 0.85 * image + 0.15 * white + fallen + fallen[::-1, ::-1])
    liquid = blurred(0.6 + 0.265 * numbers("spatter", 3).normal(32, 32)[0].double().numpy(), 1.75)
    liquid[liquid < 0.7] = 0
    for i in range(3):
        check("spatter", i, image + 0.6 * sheen(liquid)[..., None] * np.array([175, 238, 238]) / 255)
        liquid = np.apply_along_axis(lambda column: np.convolve(column, [0.2, 0.8], mode="same"), 0, liquid)


def test_zoom_blur_is_the_running_mean(x: torch.Tensor) -> None:
    image = numpy_image(x[0])
    seen = [pillow(image, np.eye(2) * (1 + 0.004 * i)) for i in range(6)]
    y = perturb(x, "zoom_blur")
    for i in range(6):
        assert np.abs(numpy_image(y[i, 0]) - np.floor(np.mean(seen[: i + 1], axis=0) + 1e-6)).max() <= 1
