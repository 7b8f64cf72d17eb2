"""Hardness of training samples: when each was learned, and whether its final logit still shows it (RC §5.1, Fig. 5).

    learned epoch of i = the epoch from which on i is classified correctly until the end

Hard samples are learned late. RC finds that with cross-entropy the largest logits of easy and hard samples differ, and
that label smoothing, L1 and focal loss make them alike. Figure 5 shows this by histograms. `rank_correlation` says it
in one number: negative where late samples end with small logits, 0 where the logits no longer depend on hardness. Its
interval is Bonett and Wright's (2000).
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
"""The learned epoch of a sample that is wrong after the last epoch."""


@dataclass(frozen=True, eq=False)
class SampleHardness:
    """Every training sample's learned epoch and its largest logit after the last epoch."""

    learned: Tensor  # [N]; NEVER: wrong at the end
    largest_logit: Tensor  # [N]
    index: Tensor  # [N], positions in the data set
    epochs: tuple[int, ...]  # those that were recorded, rising

    @property
    def never(self) -> int:
        """How many samples are wrong after the last epoch."""
        return int((self.learned == NEVER).sum())

    def spans(self, parts: int = 4) -> list[tuple[int, int]]:
        """Return first and last epoch of `parts` equal groups of epochs, and (NEVER, NEVER) as the last group."""
        cut = torch.arange(len(self.epochs)).tensor_split(min(parts, len(self.epochs)))
        return [*((self.epochs[c[0]], self.epochs[c[-1]]) for c in cut), (NEVER, NEVER)]

    def histogram(self, edges: Sequence[float], parts: int = 4) -> Tensor:
        """Count samples by group of `spans` and by cell of the largest logit, [groups, cells] (Fig. 5)."""
        cells = torch.tensor(list(edges), dtype=torch.float64)
        rows = []
        for first, last in self.spans(parts):
            mine = self.largest_logit[(self.learned >= first) & (self.learned <= last)].double().cpu()
            rows.append(torch.histogram(mine, cells).hist)
        return torch.stack(rows).long()

    def rank_correlation(self) -> Estimate:
        """Spearman's ρ of learned epoch and largest logit with its 95% interval; samples never learned rank last."""
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

    `run` is a run's folder (`calibrant train --keep-epochs`) or {epoch: TopLogits}.
    """
    kept = kept_top_logits(run) if isinstance(run, (str, Path)) else dict(run)
    if not kept:
        raise NotApplicableError(f"{run} has no record of its epochs; train with --keep-epochs")
    epochs = tuple(sorted(kept))
    first, last = kept[epochs[0]], kept[epochs[-1]]
    members = 1 if last.predicted.ndim == 1 else len(last.predicted)
    if not 0 <= member < members:
        raise InputError(f"member={member}, but the run has {members}; count from 0")
    learned = torch.full((len(last.labels),), NEVER)
    for epoch in epochs:
        top = kept[epoch]
        if top.index.shape != first.index.shape or not torch.equal(top.index, first.index):
            raise InputError(f"epoch {epoch} records other samples than epoch {epochs[0]}; train again")
        right = _of_member(top.predicted, member) == top.labels
        learned = torch.where(right, torch.where(learned == NEVER, epoch, learned), NEVER)
    return SampleHardness(learned, _of_member(last.largest_logit, member), last.index, epochs)


def _of_member(values: Tensor, member: int) -> Tensor:
    return values if values.ndim == 1 else values[member]
