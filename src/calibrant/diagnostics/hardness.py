"""Which training samples were hard, and does the trained network still know? (RC §5.1, Fig. 5).

    learned epoch of i = the epoch since which i is classified correctly, to the last one

Hard samples are learned late. RC: the largest logits of cross-entropy keep easy and hard apart; label smoothing, L1 and
focal press them together. Figure 5 shows that by histograms; `rank_correlation` says it in one number: negative where
late samples end with small logits, 0 where the logits have lost it. Its interval is Bonett and Wright's (2000).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from calibrant.errors import InputError, NotApplicableError
from calibrant.training.epochs import TopLogits, kept_top_logits
from calibrant.types import Estimate

NEVER = 0
"""Learned epoch of a sample that is wrong after the last epoch."""


@dataclass(frozen=True, eq=False)
class SampleHardness:
    """Every training sample's learned epoch and its largest logit after the last epoch."""

    learned: Tensor  # [N]; NEVER: wrong at the end
    largest_logit: Tensor  # [N]
    index: Tensor  # [N], places in the data set
    epochs: tuple[int, ...]  # that were recorded, rising

    @property
    def never(self) -> int:
        return int((self.learned == NEVER).sum())

    def spans(self, parts: int = 4) -> list[tuple[int, int]]:
        """First and last epoch of `parts` groups with equally many recorded epochs, (NEVER, NEVER) behind them."""
        cut = torch.arange(len(self.epochs)).tensor_split(min(parts, len(self.epochs)))
        return [*((self.epochs[c[0]], self.epochs[c[-1]]) for c in cut), (NEVER, NEVER)]

    def histogram(self, edges: Sequence[float], parts: int = 4) -> Tensor:
        """Samples by group of `spans` and by cell of largest logit, [groups, cells] (Fig. 5)."""
        cells = torch.tensor(list(edges), dtype=torch.float64)
        rows = []
        for first, last in self.spans(parts):
            mine = self.largest_logit[(self.learned >= first) & (self.learned <= last)].double().cpu()
            rows.append(torch.histogram(mine, cells).hist)
        return torch.stack(rows).long()

    def rank_correlation(self) -> Estimate:
        """Spearman's ρ of learned epoch and largest logit, with its 95% interval; samples never learned come last."""
        from scipy.stats import spearmanr

        late = torch.where(self.learned == NEVER, self.epochs[-1] + 1, self.learned)
        if len(late) < 4 or bool((late == late[0]).all()):
            return Estimate(None, reason="all samples were learned in the same epoch")
        rho = float(spearmanr(late.numpy(), self.largest_logit.numpy()).statistic)
        reach = 1.959964 * math.sqrt((1 + rho**2 / 2) / (len(late) - 3))
        z = math.atanh(max(min(rho, 1 - 1e-15), -1 + 1e-15))
        return Estimate(rho, math.tanh(z - reach), math.tanh(z + reach), method="Bonett–Wright over samples")


def sample_hardness(run: str | Path | Mapping[int, TopLogits], *, member: int = 0) -> SampleHardness:
    """The learned epoch and the final largest logit of every training sample.

    From a run's folder (`calibrant train --keep-epochs`) or from {epoch: TopLogits}.
    """
    kept = kept_top_logits(run) if isinstance(run, (str, Path)) else dict(run)
    if not kept:
        raise NotApplicableError(f"{run} has no record of its epochs; train with --keep-epochs")
    epochs = tuple(sorted(kept))
    first, last = kept[epochs[0]], kept[epochs[-1]]
    members = 1 if last.predicted.ndim == 1 else len(last.predicted)
    if not 0 <= member < members:
        raise InputError(f"member {member} of {members}; count from 0")
    learned = torch.full((len(last.labels),), NEVER)
    for epoch in epochs:
        top = kept[epoch]
        if top.index.shape != first.index.shape or not torch.equal(top.index, first.index):
            raise InputError(f"epoch {epoch} records other samples than epoch {epochs[0]}; train again")
        right = _of(top.predicted, member) == top.labels
        learned = torch.where(right, torch.where(learned == NEVER, epoch, learned), NEVER)
    return SampleHardness(learned, _of(last.largest_logit, member), last.index, epochs)


def _of(values: Tensor, member: int) -> Tensor:
    return values if values.ndim == 1 else values[member]
