"""The 19 corruptions, one image at a time, in numpy, scipy, matplotlib and Pillow, from their published description.

The peer of `calibrant.shifts` in tests and in `benchmarks/shifts.py`; it shares with it the table of constants and
nothing else. Images are bytes [H, W, 3]. Randomness comes from `numbers` (normal, uniform, integers, poisson), so that
a test can replay the numbers that calibrant drew.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage

Array = np.ndarray[Any, np.dtype[Any]]
GREY = np.array([0.299, 0.587, 0.114])


class Numbers(Protocol):
    """What a corruption draws."""

    def normal(self, shape: tuple[int, ...]) -> Array: ...
    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Array: ...
    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Array: ...
    def poisson(self, expectation: Array) -> Array: ...


class Legacy:
    """numpy's generator of the published code."""

    def __init__(self, seed: int) -> None:
        self.state = np.random.RandomState(seed)

    def normal(self, shape: tuple[int, ...]) -> Array:
        return self.state.normal(size=shape)

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Array:
        return np.asarray(self.state.uniform(low, high, shape))

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Array:
        return np.asarray(self.state.randint(low, high, shape))

    def poisson(self, expectation: Array) -> Array:
        return self.state.poisson(expectation)


def blurred(x: Array, sigma: float, truncate: float = 4.0, mode: str = "nearest") -> Array:
    return ndimage.gaussian_filter(x, (sigma, sigma, 0)[: x.ndim], mode=mode, truncate=truncate)


def gaussian_noise(x: Array, c: Any, numbers: Numbers) -> Array:
    return x + c * numbers.normal(x.shape)


def shot_noise(x: Array, c: Any, numbers: Numbers) -> Array:
    return numbers.poisson(x * c) / c


def impulse_noise(x: Array, c: Any, numbers: Numbers) -> Array:
    u = numbers.uniform(0, 1, x.shape)
    x = x.copy()
    x[u < c] = 0
    x[u < c / 2] = 1
    return x


def speckle_noise(x: Array, c: Any, numbers: Numbers) -> Array:
    return x + x * c * numbers.normal(x.shape)


def gaussian_blur(x: Array, c: Any, numbers: Numbers) -> Array:
    return blurred(x, c)


def defocus_blur(x: Array, c: Any, numbers: Numbers) -> Array:
    radius, alias = c
    axis = np.arange(-8, 9) if radius <= 8 else np.arange(-radius, radius + 1)
    disk = np.array(axis[:, None] ** 2 + axis**2 <= radius**2, dtype=float)
    half = 1 if radius <= 8 else 2
    kernel = ndimage.gaussian_filter(disk / disk.sum(), alias, mode="mirror", truncate=(half + 0.1) / alias)
    return np.stack([ndimage.correlate(x[..., k], kernel, mode="mirror") for k in range(3)], axis=2)


def glass_blur(x: Array, c: Any, numbers: Numbers) -> Array:
    sigma, reach, rounds = c
    x = np.uint8(blurred(x, sigma) * 255 + 1e-9)
    h, w = x.shape[:2]
    for _ in range(rounds):
        right, down = numbers.integers(-reach, reach, (2, h, w)).tolist()
        for i in range(h - reach, reach, -1):
            for j in range(w - reach, reach, -1):
                k, m = i + down[i][j], j + right[i][j]
                x[i, j], x[k, m] = x[k, m], x[i, j]  # as published: these are views
    return blurred(x / 255.0, sigma)


def motioned(x: Array, radius: int, sigma: float, degrees: float) -> Array:
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    h, w = x.shape[:2]
    total = np.zeros(x.shape)
    for i, weight in enumerate(weights):
        down = math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
        right = math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
        rows, columns = np.clip(np.arange(h) + down, 0, h - 1), np.clip(np.arange(w) + right, 0, w - 1)
        total += weight * x[rows[:, None], columns]
    return total


def motion_blur(x: Array, c: Any, numbers: Numbers) -> Array:
    return np.round(255 * motioned(x, c[0], c[1], float(numbers.uniform(-45, 45, ())))) / 255


def zoomed(x: Array, factor: float) -> Array:
    h, w = x.shape[:2]
    tall, wide = math.ceil(h / factor), math.ceil(w / factor)
    top, left = (h - tall) // 2, (w - wide) // 2
    crop = x[top : top + tall, left : left + wide]
    large = ndimage.zoom(crop, (factor, factor, 1)[: x.ndim], order=1)
    top, left = (large.shape[0] - h) // 2, (large.shape[1] - w) // 2
    return large[top : top + h, left : left + w]


def zoom_blur(x: Array, c: Any, numbers: Numbers) -> Array:
    count, step = c
    x = x.astype(np.float32)
    total = np.zeros_like(x)
    for factor in np.arange(1, 1 + (count - 0.5) * step, step):
        total += zoomed(x, factor)
    return (x + total) / (count + 1)


def snow(x: Array, c: Any, numbers: Numbers) -> Array:
    mean, deviation, zoom, threshold, radius, sigma, share = c
    layer = zoomed(mean + deviation * numbers.normal(x.shape[:2]), zoom)
    layer[layer < threshold] = 0
    layer = np.uint8(np.clip(layer, 0, 1) * 255) / 255.0
    layer = np.round(motioned(layer, radius, sigma, float(numbers.uniform(-135, -45, ()))) * 255)[..., None] / 255
    x = share * x + (1 - share) * np.maximum(x, (x @ GREY)[..., None] * 1.5 + 0.5)
    return x + layer + np.rot90(layer, k=2)


def frost(x: Array, c: Any, numbers: Numbers, picture: Array | None = None) -> Array:
    """A piece of a picture; the published five are not here, so by default one of noise, to time the same work."""
    h, w = x.shape[:2]
    if picture is None:
        picture = np.uint8(255 * numbers.uniform(0, 1, (2 * h, 2 * w, 3)))
    top = int(numbers.integers(0, picture.shape[0] - h, ()))
    left = int(numbers.integers(0, picture.shape[1] - w, ()))
    return c[0] * x + c[1] * picture[top : top + h, left : left + w] / 255


def plasma(size: int, decay: float, noise: Array) -> Array:
    """Diamond–square; `noise` [size, size] in (−1, 1) holds the wobble of each place."""
    height = np.zeros((size, size))
    step, wobble = size, 100.0
    while step >= 2:
        half, scale = step // 2, wobble * wobble
        corner = height[::step, ::step]
        square = corner + np.roll(corner, -1, 0)
        square = square + np.roll(square, -1, 1)
        middle = height[half::step, half::step] = square / 4 + scale * noise[half::step, half::step]
        above = middle + np.roll(middle, 1, 0) + corner + np.roll(corner, -1, 1)
        beside = middle + np.roll(middle, 1, 1) + corner + np.roll(corner, -1, 0)
        height[::step, half::step] = above / 4 + scale * noise[::step, half::step]
        height[half::step, ::step] = beside / 4 + scale * noise[half::step, ::step]
        step, wobble = half, wobble / decay
    height -= height.min()
    return height / height.max()


def fog(x: Array, c: Any, numbers: Numbers) -> Array:
    strength, decay = c
    h, w = x.shape[:2]
    size = 1 << (max(h, w) - 1).bit_length()
    haze = plasma(size, decay, numbers.uniform(-1, 1, (size, size)))[:h, :w, None]
    return (x + strength * haze) * x.max() / (x.max() + strength)


def brightness(x: Array, c: Any, numbers: Numbers) -> Array:
    hsv = rgb_to_hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + c, 0, 1)
    return hsv_to_rgb(hsv)


def saturate(x: Array, c: Any, numbers: Numbers) -> Array:
    hsv = rgb_to_hsv(x)
    hsv[..., 1] = np.clip(hsv[..., 1] * c[0] + c[1], 0, 1)
    return hsv_to_rgb(hsv)


def contrast(x: Array, c: Any, numbers: Numbers) -> Array:
    mean = x.mean((0, 1))
    return (x - mean) * c + mean


def elastic_transform(x: Array, c: Any, numbers: Numbers) -> Array:
    h, w = x.shape[:2]
    side = min(h, w) * (1 if min(h, w) <= 96 else 244 / 224)
    displacement, smoothness, reach = (v * side for v in c)
    corners = np.array([[1, 1], [1, -1], [-1, -1]]) * (min(h, w) // 3) + np.array([w // 2, h // 2])
    moved = corners + numbers.uniform(-reach, reach, (3, 2))
    there = np.linalg.solve(np.c_[moved, np.ones(3)], corners)  # (column, row, 1) of the new → (column, row) of the old
    columns, rows = np.meshgrid(np.arange(w), np.arange(h))
    place = np.stack([columns, rows, np.ones((h, w))], 2) @ there
    x = sampled(x, place[..., 1], place[..., 0], "mirror")
    field = numbers.uniform(-1, 1, (2, h, w))
    right, down = (blurred(f, smoothness, truncate=3.0, mode="reflect") * displacement for f in field)
    return sampled(x, rows + down, columns + right, "reflect")


def sampled(x: Array, rows: Array, columns: Array, mode: str) -> Array:
    return np.stack([ndimage.map_coordinates(x[..., k], [rows, columns], order=1, mode=mode) for k in range(3)], 2)


def pixelate(x: Array, c: Any, numbers: Numbers) -> Array:
    h, w = x.shape[:2]
    small = Image.fromarray(np.uint8(np.round(x * 255))).resize((int(w * c), int(h * c)), Image.Resampling.BOX)
    return np.asarray(small.resize((w, h), Image.Resampling.BOX)) / 255


def jpeg_compression(x: Array, c: Any, numbers: Numbers) -> Array:
    with io.BytesIO() as file:
        Image.fromarray(np.uint8(np.round(x * 255))).save(file, "JPEG", quality=c)
        return np.asarray(Image.open(file)) / 255


def spatter(x: Array, c: Any, numbers: Numbers) -> Array:
    from tests.shifts.shifts_water import sheen

    mean, deviation, sigma, threshold, strength, mud = c
    liquid = blurred(mean + deviation * numbers.normal(x.shape[:2]), sigma)
    if not mud:
        liquid[liquid < threshold] = 0
        return x + strength * sheen(liquid)[..., None] * np.array([175, 238, 238]) / 255
    cover = blurred((liquid > threshold).astype(float), strength)[..., None]
    cover[cover < 0.8] = 0
    return x * (1 - cover) + cover * np.array([63, 42, 20]) / 255


REFERENCE: dict[str, Callable[..., Array]] = {
    f.__name__: f
    for f in (
        gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur, snow, frost, fog,
        brightness, contrast, elastic_transform, pixelate, jpeg_compression, speckle_noise, gaussian_blur, spatter,
        saturate,
    )
}  # fmt: skip
"""Name → (image in [0, 1], published constant, numbers) → image, not clipped."""


def apply(name: str, x: Array, constant: Any, numbers: Numbers) -> Array:
    """Bytes to bytes, cut down as published (results that are whole bytes already stay what they are)."""
    return np.uint8(np.clip(REFERENCE[name](x / 255.0, constant, numbers), 0, 1) * 255 + 1e-9)
