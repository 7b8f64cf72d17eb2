"""Shrinkage of linear maps: they start at temperature scaling and are pulled towards it.

The start is log p at the exact temperature, mixed with a little of the uniform distribution,

    x = log[(1 − ε) softmax(z / T) + ε / K],     ε = 1 / (N + 1)

(the preprocessing of Berta, Holzmüller, Jordan and Bach 2025, arXiv 2511.03685). The temperature makes the identity the
natural centre, whatever the scale of the network. The mixture bounds x from below by what N items can show, so that one
saturated logit cannot decide the fit.

Cross-validation inside the calibration set chooses the strength: fits run from strong to weak, each one started at the
previous solution, until held-out NLL rises. Folds depend on the content of the items (stratified by label), so the
order of the rows does not matter. A ridge is a prior that is worth some items. A fold has fewer items, so its ridge is
larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.designs import Design
from calibrant.functional.multinomial import Solution, minimise
from calibrant.posthoc.temperature import least_nll
from calibrant.types import Predictions

PATH = (10.0, 1.0, 0.1, 0.01, 0.001)
"""Multipliers of the ridge of a method, from strong to weak."""
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
    """The exact temperature, or 1 if there is none (separable items, or worse than uniform)."""
    T, certificate = least_nll(logits, labels)
    return torch.tensor(1.0 if certificate["bound"] is not None else T, dtype=torch.float64)


def possible_items(p: Predictions) -> tuple[Tensor, Tensor]:
    """(float64 logits, labels) of the items whose label is possible.

    The NLL of the others is infinite, and no map changes that: they would decide the fit, and gain nothing.
    """
    assert p.logits is not None
    possible = ~torch.isneginf(p.logits.gather(1, p.labels[:, None])[:, 0])
    if not bool(possible.any()):
        raise InputError("no map can be fitted: the logit of every label is -inf")
    return p.logits[possible].double(), p.labels[possible]


def uniform_share(n: int) -> float:
    """The ε that is worth one item in N + 1."""
    return 1 / (n + 1)


def cross_validated(
    x: Tensor, labels: Tensor, design: Callable[[Tensor], Design], ridge: Callable[[float], Tensor], centre: Tensor
) -> tuple[Solution, float, dict[str, Any]]:
    """Return the fit to all items at the best multiplier, that multiplier, and the held-out NLL along the path."""
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
    """The fold of each item: the items of a class, in the order of their label's score, go to the folds in turn."""
    own = x.gather(1, labels[:, None])[:, 0]
    order = torch.argsort(own, stable=True)
    order = order[torch.argsort(labels[order], stable=True)]
    fold = torch.empty_like(labels)
    fold[order] = torch.arange(len(labels), device=labels.device) % folds
    return fold
