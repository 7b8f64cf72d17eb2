"""Expected sharpness: how much the loss fluctuates under dropout, by size of a training-phase ensemble (SS Fig. D.3).

    L_N       = −1/|D| Σ_i ln 1/N Σ_j p_ij                    the loss of an ensemble of N masks (Eq. 22)
    sharpness = E[max(L_N, L) − L],   L = E L_N                (Eq. 16–19)
              = √(V[L_N] / 2π)  if L_N is Gaussian             (Eq. 21 with its c, which Eq. 28 drops)
    V[L_N]    ≈ 1/N · 1/|D|² Σ_i σ_i²/μ_i²                    (Eq. 27; μ_i, σ_i²: mean and variance of p_i over masks)

So sharpness is proportional to the *standard deviation* of the loss; the paper says variance. Every item has its own
masks, as Eq. 23 needs. Eq. 24 needs p̄ to be near μ, so it fails where an item's p is sometimes nearly 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.diagnostics.batches import each_batch
from calibrant.ensembles.dropout import MCDropout, dropouts
from calibrant.ensembles.ensemble import positive
from calibrant.errors import InputError, NotApplicableError
from calibrant.functional.noise import member_seed
from calibrant.types import Estimate

SIZES = (1, 2, 3, 5, 10)
PASSES = 200


@dataclass(frozen=True, eq=False)
class Sharpness:
    """ln p of the label under every mask, [passes, items]; everything else follows from it."""

    log_p: Tensor

    def losses(self, size: int = 1) -> Tensor:
        """Return the losses of ensembles of `size` masks, [passes // size]; no mask is used twice."""
        groups = len(self.log_p) // positive("size", size)
        if groups < 2:
            raise InputError(f"{len(self.log_p)} passes make {groups} ensembles of {size}; use {2 * size} or more")
        grouped = self.log_p[: groups * size].reshape(groups, size, -1)
        return -(torch.logsumexp(grouped, 1) - math.log(size)).mean(1)

    def variance(self, size: int = 1) -> Estimate:
        """Return V[L_N] with its 95% χ² interval, for a Gaussian loss as in the paper."""
        from scipy.stats import chi2

        losses = self.losses(size)
        n, v = len(losses) - 1, float(losses.var())
        low, high = (n * v / float(chi2.ppf(q, n)) for q in (0.975, 0.025))
        return Estimate(v, low, high, method=f"χ² over {n + 1} ensembles")

    def expected(self, size: int = 1) -> float:
        """Return the expected sharpness E[max(L_N, L) − L], where L is the mean of the losses."""
        losses = self.losses(size)
        return float((losses - losses.mean()).clamp_min(0).mean())

    def predicted_variance(self, size: int = 1) -> float:
        """Return V[L_N] by Eq. 27, from the spread of the predictions alone."""
        p = self.log_p.exp()
        return float((p.var(0) / p.mean(0).square()).sum()) / (size * p.shape[1] ** 2)


def loss_sharpness(model: nn.Module, batches: Iterable[Any], *, passes: int = PASSES, seed: int = 0) -> Sharpness:
    """Expected sharpness and variance of the loss under dropout, for training-phase ensembles of any size.

    The loss is the negative log-likelihood on `batches`, which should be training items.
    """
    if positive("passes", passes) < 2:
        raise InputError(f"passes={passes}; a variance over passes needs at least 2")
    if not dropouts(model):
        raise NotApplicableError(f"{type(model).__name__} has no dropout, so its loss does not fluctuate")
    columns = []
    for i, batch in enumerate(each_batch(batches)):  # one seed would give every batch the same masks
        found = MCDropout(model, passes, seed=member_seed(seed, i)).predict([batch], keep_members=True)
        assert found.logits is not None
        log_p = torch.log_softmax(found.logits.double(), -1)
        columns.append(log_p.gather(-1, found.labels.expand(passes, -1)[..., None])[..., 0])
    return Sharpness(torch.cat(columns, 1))
