"""Does confidence rank errors below correct answers? AUROC, AUPR, AURC, FPR95 from one sort.

Everything works on *runs*: items sorted by confidence, most confident first, with equal confidences
merged; `good[B, R]` and `bad[B, R]` are the weights of correct and incorrect items in each run, one
row per bootstrap replicate. Ties therefore count at mid-rank and row order cannot matter.

Rank on log(1 − p_max), not on p_max: in float32 a third of a good network's confidences are 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.functional.binning import tie_runs


@dataclass(frozen=True)
class Ranking:
    """The one sort: `order` lists items from most to least confident, `run` their run of ties."""

    order: Tensor
    run: Tensor
    runs: int


def rank(log_error: Tensor) -> Ranking:
    values, order = torch.sort(log_error)  # small log(1 − p) = confident = first
    run, length = tie_runs(values)
    return Ranking(order, run, len(length))


def run_weights(ranking: Ranking, correct: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(good, bad), each [B, R], most confident run first."""
    hit = correct[ranking.order].double()
    w = torch.ones_like(hit)[None] if weights is None else weights[:, ranking.order].double()
    good, bad = w * hit, w * (1 - hit)
    if ranking.runs == len(hit):
        return good, bad
    shape = (len(w), ranking.runs)
    sums = [torch.zeros(shape, dtype=torch.float64, device=w.device).index_add_(1, ranking.run, x) for x in (good, bad)]
    return sums[0], sums[1]


def auroc(good: Tensor, bad: Tensor) -> Tensor:
    """Mann–Whitney P(correct outranks error) + ½ P(tie). (DS Eq. 4 prints |Sⁿ| where |Sᵖ| belongs.)"""
    above = torch.cumsum(good, 1) - good / 2  # correct items ranked above each run, ties half
    return (above * bad).sum(1) / (good.sum(1) * bad.sum(1))


def average_precision(positive: Tensor, negative: Tensor) -> Tensor:
    """Σ (R_n − R_{n−1}) P_n over runs from the best-ranked on; what scikit-learn calls average precision."""
    found = torch.cumsum(positive, 1)
    seen = found + torch.cumsum(negative, 1)
    return (positive * (found / seen.clamp_min(1e-300))).sum(1) / positive.sum(1)


def aupr_success(good: Tensor, bad: Tensor) -> Tensor:
    return average_precision(good, bad)


def aupr_error(good: Tensor, bad: Tensor) -> Tensor:
    return average_precision(bad.flip(1), good.flip(1))


def fpr_at_tpr(good: Tensor, bad: Tensor, tpr: float = 0.95) -> Tensor:
    """Share of errors accepted at the strictest threshold that accepts `tpr` of the correct answers."""
    kept = torch.cumsum(good, 1) / good.sum(1, keepdim=True)
    reached = kept >= tpr - 1e-12
    first = reached.to(torch.uint8).argmax(1, keepdim=True)
    accepted = torch.cumsum(bad, 1).gather(1, first)[:, 0]
    return accepted / bad.sum(1)


def aurc(good: Tensor, bad: Tensor) -> Tensor:
    """Area under risk–coverage: the mean, over k = 1…n, of the error rate among the k most confident.

    Within a run of m ties holding e errors after n₀ items and E₀ errors, the order is arbitrary, so
    the risk is its expectation (E₀ + j·e/m)/(n₀ + j), j = 1…m, summed in closed form with harmonic
    numbers (digamma, so that fractional weights work too).
    """
    size = good + bad
    n1 = torch.cumsum(size, 1)
    n0, e0 = n1 - size, torch.cumsum(bad, 1) - bad
    harmonic = _digamma(n1 + 1) - _digamma(n0 + 1)  # Σ 1/(n₀ + j)
    slope = bad / size.clamp_min(1e-300)
    area = e0 * harmonic + slope * (size - n0 * harmonic)
    return area.sum(1) / n1[:, -1]


def best_aurc(good: Tensor, bad: Tensor) -> Tensor:
    """AURC of a ranking that puts every error last, at this error rate: what excess-AURC subtracts."""
    right, wrong = good.sum(1), bad.sum(1)
    total = right + wrong
    harmonic = _digamma(total + 1) - _digamma(right + 1)
    return (wrong - right * harmonic) / total


def _digamma(x: Tensor) -> Tensor:
    """ψ(x) for x ≥ 1 through the asymptotic series at x + 6: exact to 1e-13 and vectorised."""
    shift = 1 / x + 1 / (x + 1) + 1 / (x + 2) + 1 / (x + 3) + 1 / (x + 4) + 1 / (x + 5)
    y = x + 6
    i = 1 / (y * y)
    tail = i * (1 / 12 - i * (1 / 120 - i * (1 / 252 - i * (1 / 240 - i * (1 / 132)))))
    return torch.log(y) - 0.5 / y - tail - shift


def accuracy_coverage(good: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
    """(coverage, accuracy of what is accepted) after each run, most confident first."""
    size = torch.cumsum(good + bad, 1)
    return size / size[:, -1:], torch.cumsum(good, 1) / size.clamp_min(1e-300)
