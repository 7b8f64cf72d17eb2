"""Robustness levels (AR §3): items ranked by their distance and cut into R subsets of equal size.

Level 0 is the least robust. Where N is not a multiple of R, sizes differ by one; equal distances are ranked by index.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.errors import InputError


def levels(distance: Tensor, R: int = 10) -> Tensor:
    """Level 0 … R − 1 of each item, long [N]; an infinite distance is the most robust."""
    distance = torch.as_tensor(distance)
    if distance.ndim != 1:
        raise InputError(f"distances must be one number an item, got the shape {tuple(distance.shape)}")
    n = len(distance)
    if int(R) != R or not 1 <= R <= n:
        raise InputError(f"R={R} levels of {n} items: every level needs one; choose R from 1 to {n}")
    if bool(torch.isnan(distance).any()):
        first = int(torch.isnan(distance).nonzero()[0])
        raise InputError(f"the distance of item {first} is not a number; measure the robustness again")
    rank = torch.empty(n, dtype=torch.long, device=distance.device)
    rank[distance.argsort(stable=True)] = torch.arange(n, device=distance.device)
    return rank * int(R) // n
