"""Give the reference the random numbers that calibrant drew for one item."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from calibrant.shifts.random_numbers import Draws, draws

Array = np.ndarray[Any, np.dtype[Any]]


class Replay:
    """Answers each request with the next array; shapes must agree."""

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays = arrays

    def take(self, shape: tuple[int, ...]) -> Array:
        found = self.arrays.pop(0)
        assert found.shape == shape
        return found

    def normal(self, shape: tuple[int, ...]) -> Array:
        return self.take(shape)

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Array:
        return low + (high - low) * self.take(shape)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Array:
        return low + np.floor((high - low) * self.take(shape)).astype(int)

    def poisson(self, expectation: Array) -> Array:
        from scipy.stats import poisson

        return np.asarray(poisson.ppf(self.take(expectation.shape), expectation))


def replay(name: str, severity: int, h: int, w: int, *, seed: int, item: int, rounds: int = 1) -> Replay:
    """What the corruption draws for this item, by its documented streams."""
    numbers: Draws = draws(seed, name, severity, 1, torch.device("cpu"), item)
    side = 1 << (max(h, w) - 1).bit_length()

    def image(x: torch.Tensor) -> Array:
        return x[0].permute(1, 2, 0).double().numpy()

    def plain(x: torch.Tensor) -> Array:
        return x[0].double().numpy()

    if name in ("gaussian_noise", "speckle_noise"):
        return Replay([image(numbers.normal(3, h, w))])
    if name in ("impulse_noise", "shot_noise"):
        return Replay([image(numbers.uniform(3, h, w))])
    if name == "glass_blur":
        return Replay([plain(numbers.uniform(2, h, w, stream=i)) for i in range(rounds)])
    if name == "motion_blur":
        return Replay([plain(numbers.uniform())])
    if name == "snow":
        return Replay([plain(numbers.normal(h, w)), plain(numbers.uniform(stream=1))])
    if name == "fog":
        return Replay([wobble(numbers, side)])
    if name == "elastic_transform":
        return Replay([plain(numbers.uniform(3, 2)), plain(numbers.uniform(2, h, w, stream=1))])
    if name == "spatter":
        return Replay([plain(numbers.normal(h, w))])
    return Replay([])


def wobble(numbers: Draws, size: int) -> Array:
    """The fractal's noise [size, size] by place: a level's middles, then the points above and those beside them."""
    field = np.zeros((size, size))
    noise = numbers.uniform(size * size - 1)[0].double().numpy()
    for level in range(size.bit_length() - 1):
        side = 2**level
        step, half = size // side, size // side // 2
        drawn, noise = noise[: 3 * side * side].reshape(3, side, side), noise[3 * side * side :]
        field[half::step, half::step], field[::step, half::step], field[half::step, ::step] = drawn
    return field
