"""One prediction from several members, and how much the members disagree; in log space and float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def pool(logits: Tensor) -> Tensor:
    """Members [M, N, K] → [N, K], the log of the mean probability: log (1/M) Σ_m softmax(z_m)."""
    pooled: Tensor = torch.logsumexp(torch.log_softmax(logits.double(), -1), 0) - math.log(logits.shape[0])
    return pooled


def pooled(logits: Tensor) -> Tensor:
    """Members [M, N, K], pooled, or a single prediction [N, K], as float64 [N, K]."""
    return pool(logits) if logits.ndim == 3 else logits.double()


@dataclass(frozen=True)
class Disagreement:
    """For each item, over M members: the entropy of the mean, the mean of the entropies, their difference (mutual
    information), and the variance of the probability of the *true* class.

    AR §3.1 writes σ² = 1/(M − 1) Σ_m (p̂_m,i − p̄_i)² without naming the class; we read it as the true class. `votes`
    holds the label that each member predicts, for churn.
    """

    predictive_entropy: Tensor
    expected_entropy: Tensor
    variance: Tensor
    votes: Tensor  # [M, N]

    @property
    def mutual_information(self) -> Tensor:
        return (self.predictive_entropy - self.expected_entropy).clamp_min(0)

    def churn(self) -> Tensor:
        """For each item, the share of the M(M−1)/2 pairs of members that predict different labels."""
        m = len(self.votes)
        same = torch.zeros(self.votes.shape[1], dtype=torch.float64, device=self.votes.device)
        for i in range(m):
            for j in range(i + 1, m):
                same += (self.votes[i] == self.votes[j]).double()
        return 1 - same / (m * (m - 1) / 2)


def disagreement(logits: Tensor, labels: Tensor) -> Disagreement:
    """The disagreement of members' logits [M, N, K]."""
    log_p = torch.log_softmax(logits.double(), -1)
    p = log_p.exp()
    true = p.gather(-1, labels.expand(len(p), -1)[..., None])[..., 0]
    return Disagreement(
        predictive_entropy=torch.special.entr(p.mean(0)).sum(-1),
        expected_entropy=torch.special.entr(p).sum(-1).mean(0),
        variance=true.var(0),
        votes=p.argmax(-1),
    )
