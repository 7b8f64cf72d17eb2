"""Water's sheen in numpy and scipy: Canny's edges, distance to them, equalised and embossed. For `shifts_reference`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import ndimage

Array = np.ndarray[Any, np.dtype[Any]]


def sheen(liquid: Array) -> Array:
    drops = np.uint8(np.clip(liquid, 0, 1) * 255)
    edge = canny(drops.astype(int), 50, 150)
    far = ndimage.distance_transform_edt(~edge) if edge.any() else np.full(edge.shape, 20.0)
    far = ndimage.uniform_filter(np.minimum(far, 20), 3, mode="mirror")
    relief = equalised(np.floor(far + 1e-4).astype(int))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = np.clip(ndimage.correlate(relief, emboss, mode="mirror"), 0, 255)
    shine = drops * np.round(ndimage.uniform_filter(relief.astype(float), 3, mode="mirror"))
    return shine / max(shine.max(), 1)


def canny(x: Array, low: float, high: float) -> Array:
    """Pixel by pixel; L1 norm of Sobel's gradient, ties broken towards the first, 8-connected hysteresis."""
    across, down = ndimage.sobel(x, 1, mode="nearest"), ndimage.sobel(x, 0, mode="nearest")
    steep = np.pad(abs(across) + abs(down), 1)
    ridge = np.zeros(x.shape, bool)
    for i, j in zip(*np.nonzero(steep[1:-1, 1:-1] > low), strict=True):
        m, gx, gy = steep[i + 1, j + 1], across[i, j], down[i, j]
        ratio = abs(gy) / abs(gx) if gx else math.inf
        if ratio < math.tan(math.pi / 8):
            ridge[i, j] = m > steep[i + 1, j] and m >= steep[i + 1, j + 2]
        elif ratio > math.tan(3 * math.pi / 8):
            ridge[i, j] = m > steep[i, j + 1] and m >= steep[i + 2, j + 1]
        else:
            s = -1 if (gx < 0) != (gy < 0) else 1
            ridge[i, j] = m > steep[i, j + 1 - s] and m > steep[i + 2, j + 1 + s]
    parts, count = ndimage.label(ridge, np.ones((3, 3)))
    if not count:
        return ridge
    strong = np.zeros(count + 1, bool)
    strong[np.unique(parts[ridge & (steep[1:-1, 1:-1] > high)])] = True
    strong[0] = False
    return strong[parts]


def equalised(x: Array) -> Array:
    count = np.bincount(x.ravel(), minlength=256)
    first = int(np.nonzero(count)[0][0])
    if count[first] == x.size:
        return x
    below = np.cumsum(count) - count[first]
    return np.round(np.maximum(below, 0) * (255 / (x.size - count[first]))).astype(int)[x]
