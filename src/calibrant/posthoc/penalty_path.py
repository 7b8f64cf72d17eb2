"""How strongly to shrink a linear map, chosen by cross-validation inside the calibration set.

Fits run along one path, from strong to weak, each started at the last one's answer, until held-out NLL has turned.
Folds are made from the items' content (stratified by label), so that the order of rows cannot matter. A ridge stands
for a prior, worth some items; inside a fold it weighs more against fewer, and is scaled so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant.functional.designs import Design
from calibrant.functional.multinomial import Solution, minimise

PATH = (10.0, 1.0, 0.1, 0.01, 0.001)
"""Multipliers of a method's own ridge, strong to weak."""
FOLDS = 3
ROUGH = 1e-6
"""Tolerance of the fits that are only compared."""


def cross_validated(
    x: Tensor, labels: Tensor, design: Callable[[Tensor], Design], ridge: Callable[[float], Tensor], centre: Tensor
) -> tuple[Solution, float, dict[str, Any]]:
    """(the fit to all items at the best multiplier, that multiplier, held-out NLL along the path)."""
    fold = content_folds(x, labels, FOLDS)
    totals: dict[float, float] = {}
    starts: list[Tensor | None] = [None] * FOLDS
    for m in PATH:
        total = 0.0
        for f in range(FOLDS):
            inside, outside = fold != f, fold == f
            found = minimise(
                design(x[inside]),
                labels[inside],
                ridge(m) * (len(labels) / int(inside.sum())),
                centre,
                start=starts[f],
                tolerance=ROUGH,
            )
            starts[f] = found.theta
            log_p = torch.log_softmax(design(x[outside])(found.theta), 1)
            total -= float(log_p.gather(1, labels[outside][:, None]).sum())
        totals[m] = total / len(labels)
        if totals[m] > min(totals.values()):
            break
    best = min(totals, key=totals.__getitem__)
    found = minimise(design(x), labels, ridge(best), centre)
    return found, best, {"held_out_nll": {f"{m:g}": t for m, t in totals.items()}}


def content_folds(x: Tensor, labels: Tensor, folds: int) -> Tensor:
    """Fold of each item: items of a class in the order of their label's score, dealt in turn."""
    own = x.gather(1, labels[:, None])[:, 0]
    order = torch.argsort(own, stable=True)
    order = order[torch.argsort(labels[order], stable=True)]
    fold = torch.empty_like(labels)
    fold[order] = torch.arange(len(labels)) % folds
    return fold
