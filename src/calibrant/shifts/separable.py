"""Linear maps of an image that act on rows and columns separately: y = L · x · Rᵀ. Blur, zoom and resize are such maps.

The entries of a matrix include the rule for the border, so an image of any size, even one smaller than the kernel,
needs the same two products; matrices are made once in float64 and cached.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

Device = torch.device

LANES = 16
"""Rows are padded to a multiple of this, because products of unaligned planes may differ in the last bit."""


def separable(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """L · x · Rᵀ for every plane of x [N, C, H, W], with L [H', H] = rows and R [W', W] = columns."""
    n, c, h, w = x.shape
    wide = columns.shape[0]
    if w % LANES or wide % LANES:
        x, columns = F.pad(x, (0, -w % LANES)), F.pad(columns, (0, -w % LANES, 0, -wide % LANES))
    across = (x.reshape(n * c * h, -1) @ columns.T).view(n * c, h, -1)
    made = torch.matmul(rows, across).view(n, c, rows.shape[0], -1)
    return made[..., :wide].contiguous() if wide % LANES else made


def gaussian(x: Tensor, sigma: float, truncate: float = 4.0, border: str = "nearest") -> Tensor:
    """Gaussian blur as in scipy and scikit-image: taps within `truncate` deviations, borders repeated or reflected."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return x
    h, w = x.shape[-2:]
    if 7 * (2 * radius + 1) < min(h, w):  # few taps on a large image: sums of shifted copies do less work
        return shifted_sums(shifted_sums(x, sigma, radius, 3, border), sigma, radius, 2, border)
    return separable(
        x, gaussian_matrix(h, sigma, truncate, border, x.device), gaussian_matrix(w, sigma, truncate, border, x.device)
    )


def shifted_sums(x: Tensor, sigma: float, radius: int, axis: int, border: str) -> Tensor:
    """Gaussian blur along one axis."""
    n = x.shape[axis]
    weights = gaussian_weights(sigma, radius).tolist()
    padded = x.index_select(axis, border_index(torch.arange(-radius, n + radius, device=x.device), n, border))
    total: Tensor = padded.narrow(axis, radius, n) * weights[radius]
    for i in range(radius):  # smallest weight first, both sides together
        total.add_(padded.narrow(axis, i, n) + padded.narrow(axis, 2 * radius - i, n), alpha=weights[i])
    return total


def gaussian_weights(sigma: float, radius: int) -> Tensor:
    """Gaussian weights of −radius … radius, float64, of sum 1."""
    distance = torch.arange(-radius, radius + 1, dtype=torch.float64)
    return torch.softmax(-0.5 / sigma**2 * distance.square(), dim=0)


def clipped_zoom(x: Tensor, factor: float) -> Tensor:
    """Enlarge the middle of the image to the size of the image (scipy's `zoom` of order 1, corners aligned)."""
    h, w = x.shape[-2:]
    return separable(x, zoom_matrix(h, factor, x.device), zoom_matrix(w, factor, x.device))


def border_index(index: Tensor, n: int, border: str) -> Tensor:
    """Map indices into 0 … n − 1 by a rule: "nearest" aaa|abc|ccc, "reflect" cba|abc|cba, "mirror" dcb|abcd|cba."""
    if border == "nearest" or n == 1:
        return index.clamp(0, n - 1)
    period = 2 * n if border == "reflect" else 2 * n - 2
    folded = index.remainder(period)
    return torch.minimum(folded, (period - 1 if border == "reflect" else period) - folded)


@functools.lru_cache(maxsize=128)
def gaussian_matrix(n: int, sigma: float, truncate: float, border: str, device: Device) -> Tensor:
    """float32 [n, n]: row i holds the weights of the pixels that make pixel i."""
    radius = int(truncate * sigma + 0.5)
    columns = border_index(torch.arange(n)[:, None] + torch.arange(-radius, radius + 1), n, border)
    return _place(n, columns, gaussian_weights(sigma, radius).expand(n, -1), device)


@functools.lru_cache(maxsize=128)
def zoom_matrix(n: int, factor: float, device: Device) -> Tensor:
    """float32 [n, n]: crop the middle ⌈n / factor⌉, enlarge it linearly, cut what is more than n off both ends."""
    crop = math.ceil(n / factor)
    size = round(crop * factor)
    at = (torch.arange(n, dtype=torch.float64) + (size - n) // 2) * (crop - 1) / max(size - 1, 1)
    low = at.floor().clamp(0, max(crop - 2, 0))
    share = at - low
    first = low.long() + (n - crop) // 2
    columns = torch.stack((first, (first + 1).clamp(max=n - 1)), dim=1)
    return _place(n, columns, torch.stack((1 - share, share), dim=1), device)


def _place(n: int, columns: Tensor, weights: Tensor, device: Device) -> Tensor:
    """The matrix with these weights added in these columns."""
    matrix = torch.zeros(columns.shape[0], n, dtype=torch.float64)
    return matrix.scatter_add_(1, columns, weights.double().contiguous()).to(torch.float32).to(device)
