"""One-vs-rest calibration of every class from sums in (class, bin) cells, instead of from N × K probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.binning import equal_width
from calibrant.functional.chunks import row_chunks
from calibrant.functional.pooling import pooled
from calibrant.types import Predictions

_FLUSH = 1 << 20  # entries that are collected before they are summed into cells


@dataclass(frozen=True)
class Classwise:
    """Sums in each (class, bin) cell, [K, B].

    At most B − 1 entries of a row exceed 1/B, so only these are placed one by one. The rest of the total of a class is
    in its first bin.
    """

    count: Tensor
    confidence: Tensor
    positive: Tensor

    def __add__(self, other: Classwise) -> Classwise:
        return Classwise(self.count + other.count, self.confidence + other.confidence, self.positive + other.positive)


class ClasswiseSum:
    """Sums up `Classwise` over chunks of rows."""

    def __init__(self, k: int, bins: int, device: torch.device) -> None:
        self.k, self.bins, self.n = k, bins, 0
        self.sum = torch.zeros(k, dtype=torch.float64, device=device)
        self.conf = torch.zeros(k * bins, dtype=torch.float64, device=device)
        self.items = torch.zeros(2 * k * bins, dtype=torch.long, device=device)  # of entries; of labels
        self.entries: list[tuple[Tensor, Tensor]] = []
        self.truths: list[tuple[Tensor, Tensor]] = []
        self.pending = 0

    def add(self, e: Tensor, scale: Tensor, a: Tensor, y: Tensor, p_label: Tensor) -> None:
        """Add a chunk: `e` is exp(z − m) with the entry of the maximum, at `a`, set to 0; `scale` = p_max makes it
        probabilities; `y` are the labels and `p_label` their probabilities."""
        self.n += len(e)
        self.sum += scale @ e + torch.bincount(a, scale, minlength=self.k)  # few classes: `index_add_` would queue up
        self.entries.append((a, scale))
        # the other entries of a row sum to 1 − p_max, so only rows where that exceeds 1/B have another large entry
        part, factor = e, scale
        if not e.is_cuda:  # on CUDA, reading all rows is quicker than waiting for the list of rows
            rows = (1 - scale > 1 / self.bins).nonzero()[:, 0]
            if 2 * len(rows) <= len(e):
                part, factor = e[rows], scale[rows]
        flat = _where_above(part, 1 / (factor * self.bins))
        self.entries.append((flat % self.k, part.reshape(-1)[flat] * factor[flat // self.k]))
        self.truths.append((y, p_label))
        self.pending += len(flat) + len(a)
        if self.pending > _FLUSH:
            self._flush()

    def _flush(self) -> None:
        size = self.k * self.bins
        which, p = (torch.cat(c) for c in zip(*self.entries, *self.truths, strict=True))
        key, entries = which * self.bins + equal_width(p, self.bins), sum(len(c) for c, _ in self.entries)
        self.conf += torch.bincount(key[:entries], p[:entries], minlength=size)
        key[entries:] += size
        self.items += torch.bincount(key, minlength=2 * size)
        self.entries, self.truths, self.pending = [], [], 0

    def total(self) -> Classwise:
        if self.pending:
            self._flush()
        count, hit = self.items.cpu().double().view(2, self.k, self.bins)
        conf = self.conf.cpu().view(self.k, self.bins).clone()
        count[:, 0] = self.n - count[:, 1:].sum(1)
        conf[:, 0] = self.sum.cpu() - conf[:, 1:].sum(1)
        return Classwise(count, conf, hit)


def _where_above(e: Tensor, least: Tensor) -> Tensor:
    """The flat positions where an entry exceeds the bound of its row. They are few, and NumPy finds them quickly."""
    above = (e > least[:, None]).reshape(-1)
    return torch.from_numpy(np.flatnonzero(above.numpy())) if e.device.type == "cpu" else above.nonzero()[:, 0]


def classwise_influence(predictions: Predictions, signs: Tensor, bins: int) -> Tensor:
    """Σ_k signs[k, bin of p_k] (p_k − y_k) of each item, [N]: the derivative of Σ|δ| by the item's weight. `signs` is
    [K, bins]."""
    assert predictions.logits is not None
    logits = predictions.logits
    signs = signs.to(logits.device)
    parts = []
    for rows in row_chunks(logits):
        p = torch.softmax(pooled(logits[..., rows, :]), -1)
        y = predictions.labels[rows].to(p.device)
        total = p @ signs[:, 0]
        row, column = (p > 1 / bins).nonzero(as_tuple=True)
        high = p[row, column]
        total.index_add_(0, row, (signs[column, equal_width(high, bins)] - signs[column, 0]) * high)
        total -= signs[y, equal_width(p.gather(1, y[:, None])[:, 0], bins)]
        parts.append(total.cpu())
    return torch.cat(parts)
