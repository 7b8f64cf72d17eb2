"""Robustness levels (AR §3): items ranked by their distance and cut into R subsets of equal size.

Level 0 is the least robust. Where N is not a multiple of R, sizes differ by one; equal distances are ranked by index.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.tensors import as_tensor


def levels(distance: Any, R: int = 10) -> Tensor:
    """Level 0 … R − 1 of each item, long [N]; `distance` is a tensor, array or list, infinite for the most robust."""
    distance = as_tensor(distance, "distance")
    if distance.ndim != 1:
        raise InputError(f"distances must be one number per item, got the shape {tuple(distance.shape)}")
    if not (n := len(distance)):
        raise InputError("there is no distance to cut into levels; measure the robustness of some items")
    if not isinstance(R, Real) or isinstance(R, bool) or not 1 <= R <= n or int(R) != R:
        raise InputError(f"R={R} levels of {n} items: every level needs one; choose R from 1 to {n}")
    if bool(torch.isnan(distance).any()):
        first = int(torch.isnan(distance).nonzero()[0])
        raise InputError(f"the distance of item {first} is not a number; measure the robustness again")
    rank = torch.empty(n, dtype=torch.long, device=distance.device)
    rank[distance.argsort(stable=True)] = torch.arange(n, device=distance.device)
    return rank * int(R) // n
