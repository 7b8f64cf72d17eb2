"""Shrinkage of linear maps: they start at temperature scaling and are pulled towards it.

The start is log p at the exact temperature, mixed with a little of the uniform distribution,

    x = log[(1 − ε) softmax(z / T) + ε / K],     ε = 1 / (N + 1)

(Berta, Holzmüller, Jordan and Bach 2025, arXiv 2511.03685: their preprocessing). The temperature makes the identity
the natural centre, whatever the network's scale. The mixture bounds x from below by what N items can show, so that one
saturated logit cannot decide the fit.

The strength is chosen by cross-validation inside the calibration set: fits run from strong to weak, each started at
the previous solution, until held-out NLL rises. Folds are made from the items' content (stratified by label), so that
the order of rows cannot matter. A ridge is a prior worth some items; a fold has fewer items, so its ridge is larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant.functional.designs import Design
from calibrant.functional.multinomial import Solution, minimise
from calibrant.posthoc.temperature import least_nll

PATH = (10.0, 1.0, 0.1, 0.01, 0.001)
"""Multipliers of a method's own ridge, strong to weak."""
FOLDS = 3
ROUGH = 1e-6
"""Tolerance of the fits that are only compared."""


def tempered(logits: Tensor, temperature: Tensor, epsilon: float) -> Tensor:
    """Finite features [..., N, K] from any logits, −inf and ±1e4 included."""
    log_p = torch.log_softmax(logits / temperature, -1)
    if epsilon == 0:
        return log_p
    floor = log_p.new_tensor(math.log(epsilon / logits.shape[-1]))
    return torch.logaddexp(log_p + math.log1p(-epsilon), floor)


def anchor(logits: Tensor, labels: Tensor) -> Tensor:
    """The exact temperature, or 1 where there is none (separable items, or worse than uniform)."""
    T, certificate = least_nll(logits, labels)
    return torch.tensor(1.0 if certificate["bound"] is not None else T, dtype=torch.float64)


def uniform_share(n: int) -> float:
    """ε: one item in N + 1."""
    return 1 / (n + 1)


def cross_validated(
    x: Tensor, labels: Tensor, design: Callable[[Tensor], Design], ridge: Callable[[float], Tensor], centre: Tensor
) -> tuple[Solution, float, dict[str, Any]]:
    """(the fit to all items at the best multiplier, that multiplier, held-out NLL along the path)."""
    fold = content_folds(x, labels, FOLDS)
    totals: dict[float, float] = {}
    starts: list[Tensor | None] = [None] * FOLDS
    near: dict[float, Tensor] = {}
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
        totals[m], near[m] = total / len(labels), found.theta
        if totals[m] > min(totals.values()):
            break
    best = min(totals, key=totals.__getitem__)
    found = minimise(design(x), labels, ridge(best), centre, start=near[best])
    return found, best, {"held_out_nll": {f"{m:g}": t for m, t in totals.items()}}


def content_folds(x: Tensor, labels: Tensor, folds: int) -> Tensor:
    """Fold of each item: the items of a class, ordered by their label's score, are assigned to the folds in turn."""
    own = x.gather(1, labels[:, None])[:, 0]
    order = torch.argsort(own, stable=True)
    order = order[torch.argsort(labels[order], stable=True)]
    fold = torch.empty_like(labels)
    fold[order] = torch.arange(len(labels), device=labels.device) % folds
    return fold
