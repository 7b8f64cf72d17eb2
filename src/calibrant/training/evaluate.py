"""Predictions of the members on a part of the data, and the metrics of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data.label_maps import IGNORED
from calibrant.functional.inputs import predictions
from calibrant.functional.pooling import pool
from calibrant.functional.scores import reduce
from calibrant.metrics import METRICS
from calibrant.metrics.panel import Panel
from calibrant.nn.evaluation import evaluation
from calibrant.types import Predictions, Split

EPOCH_METRICS = ("accuracy", "nll", "brier", "ece", "auroc", "aurc")
"""Computed on validation after each epoch."""


def collect_logits(
    models: Sequence[nn.Module],
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    autocast: Callable[[], AbstractContextManager[Any]],
    keep: Callable[[Tensor], Tensor] = lambda logits: logits,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits [M, N, K] (float32, on the device), labels and indices, in the order of the batches.

    `keep` reduces the logits of each batch, if those of all data would not fit into memory."""
    logits: list[list[Tensor]] = [[] for _ in models]
    labels, indices = [], []
    with evaluation(*models), torch.inference_mode(), autocast():
        for x, y, index in batches:
            labels.append(y)
            indices.append(index)
            for m, out in zip(models, logits, strict=True):
                out.append(keep(m(x).float()))
    return torch.stack([torch.cat(out) for out in logits]), torch.cat(labels), torch.cat(indices)


def largest_logit(logits: Tensor) -> Tensor:
    """The largest logit and its class, [..., K] → [..., 2] (exact in float32 below 16 million classes)."""
    largest, predicted = logits.max(-1)
    return torch.stack((largest, predicted.to(largest.dtype)), -1)


def as_predictions(
    logits: Tensor, labels: Tensor, index: Tensor, split: Split, classes: Sequence[str] | None
) -> Predictions:
    """Predictions with logits [N, K] of one member, or [M, N, K] of several. Ids are indices in the data set."""
    scores = logits[0] if len(logits) == 1 else logits
    if labels.ndim > 1 and len(logits) > 1:
        scores = pool(logits.flatten(1, -2)).reshape(logits.shape[1:])  # members of label images are pooled here
    ids = [f"{i}" for i in index.tolist()] if labels.ndim == 1 else None
    # inference tensors cannot enter autograd later; a copy on the CPU can
    found = predictions(
        scores.cpu().clone(), labels.cpu().clone(), split=split, ids=ids, classes=classes, ignore_index=IGNORED
    )
    return found if labels.ndim == 1 or len(logits) == 1 else replace(found, raw=False)


def pool_members(p: Predictions) -> Predictions:
    """The predictions of all members as one predictor; a target policy observes these."""
    if p.members == 1 or p.logits is None:
        return p
    return replace(p, logits=pool(p.logits), raw=False)


def summary(p: Predictions, names: Sequence[str] = EPOCH_METRICS) -> dict[str, float | None]:
    """Values of the named metrics; None if one is undefined (AUROC when all are correct)."""
    panel = Panel(reduce(p))
    return {n: float(METRICS[n](panel)[0]) if METRICS[n].missing(panel) is None else None for n in names}
