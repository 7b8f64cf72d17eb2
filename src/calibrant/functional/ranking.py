"""Does confidence rank errors below correct answers? AUROC, AUPR, AURC and FPR95, from one sort.

All functions work on *runs*: items sorted by confidence, most confident first, with equal confidences merged.
`good[B, R]` and `bad[B, R]` are the weights of the correct and the incorrect items in each run, with one row per
bootstrap replicate. So ties count at mid-rank, and the order of the rows does not matter.

Items are ranked on log(1 − p_max), not on p_max: in float32, a third of a good network's confidences are exactly 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from calibrant.functional.binning import tie_runs


@dataclass(frozen=True)
class Ranking:
    """`order` lists the items from most to least confident (None if they are in that order already). `run` is the run
    of ties of each ranked item, and `runs` is the number of runs."""

    order: Tensor | None
    run: Tensor
    runs: int

    def ranked(self, values: Tensor) -> Tensor:
        """Values of the items, [..., N], in rank order."""
        return values if self.order is None else values[..., self.order]

    @property
    def positions(self) -> Tensor:
        """The item at each rank."""
        return torch.arange(len(self.run), device=self.run.device) if self.order is None else self.order

    @cached_property
    def start(self) -> Tensor:
        """The rank of the first item of each run, followed by N."""
        new = torch.ones_like(self.run, dtype=torch.bool)
        new[1:] = self.run[1:] != self.run[:-1]
        first = new.nonzero()[:, 0]
        return torch.cat([first, first.new_tensor([len(self.run)])])


TIE = 1e-11
"""Neighbours this close in log(1 − p) tie. This undoes the rounding of sums in float64: a forest's rows
(.4, .3, .2, .1) and (.4, .1, .2, .3) are equally confident, in whatever order their entries are added."""


def rank(log_error: Tensor) -> Ranking:
    values, order = torch.sort(log_error)  # small log(1 − p) = confident = first
    run, start = tie_runs(values, TIE)
    return Ranking(order, run, len(start))


def merged(ranking: Ranking, cells: int) -> Tensor:
    """The cell of each ranked item, with about n/cells items each. Runs of ties are not split."""
    return ranking.run if ranking.runs <= cells else cell_of(ranking.start[:-1], len(ranking.run), cells)[ranking.run]


def cell_of(start: Tensor, total: float, cells: int) -> Tensor:
    """The cell of each run [R]; `start` [R] counts the items before it, out of `total`."""
    slot = (start.double() * cells / total).floor()
    cell: Tensor = torch.unique_consecutive(slot, return_inverse=True)[1]
    return cell


def run_weights(ranking: Ranking, correct: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The weights (good, bad) of the correct and incorrect items in each run, [B, R], most confident first."""
    hit = ranking.ranked(correct).double()
    w = torch.ones_like(hit)[None] if weights is None else ranking.ranked(weights).double()
    good = w * hit
    bad = w - good
    if ranking.runs == len(hit):
        return good, bad
    return run_sums(ranking, good), run_sums(ranking, bad)


def run_sums(ranking: Ranking, values: Tensor) -> Tensor:
    """The sums over runs, [B, R], of values [B, N] in rank order."""
    return values.new_zeros(len(values), ranking.runs).index_add(1, ranking.run, values)


def run_maxima(ranking: Ranking, values: Tensor) -> Tensor:
    """The largest value in each run [R], given one value per item [N]."""
    least = values.new_full((ranking.runs,), -torch.inf)
    return least.scatter_reduce_(0, ranking.run, ranking.ranked(values), "amax")


def auroc(good: Tensor, bad: Tensor) -> Tensor:
    """The Mann–Whitney statistic P(correct outranks error) + ½ P(tie). (DS Eq. 4 prints |Sⁿ| instead of |Sᵖ|.)"""
    above = torch.cumsum(good, 1) - good / 2  # correct items ranked above each run, ties half
    return (above * bad).sum(1) / (good.sum(1) * bad.sum(1))


def average_precision(positive: Tensor, negative: Tensor) -> Tensor:
    """Σ (R_n − R_{n−1}) P_n over the runs, best-ranked first; scikit-learn's average precision."""
    found = torch.cumsum(positive, 1)
    seen = found + torch.cumsum(negative, 1)
    return (positive * (found / seen.clamp_min(1e-300))).sum(1) / positive.sum(1)


def aupr_success(good: Tensor, bad: Tensor) -> Tensor:
    return average_precision(good, bad)


def aupr_error(good: Tensor, bad: Tensor) -> Tensor:
    return average_precision(bad.flip(1), good.flip(1))


def fpr_at_tpr(good: Tensor, bad: Tensor, tpr: float = 0.95) -> Tensor:
    """The share of errors accepted at the strictest threshold that accepts a share `tpr` of the correct answers."""
    kept = torch.cumsum(good, 1) / good.sum(1, keepdim=True)
    reached = kept >= tpr - 1e-12
    first = reached.to(torch.uint8).argmax(1, keepdim=True)
    accepted = torch.cumsum(bad, 1).gather(1, first)[:, 0]
    return accepted / bad.sum(1)


def aurc(good: Tensor, bad: Tensor) -> Tensor:
    """The area under the risk–coverage curve: the mean over k = 1…n of the error rate among the k most confident.

    In a run of m ties with e errors, after n₀ items and E₀ errors, the order is arbitrary. The risk is therefore its
    expectation (E₀ + j·e/m)/(n₀ + j), j = 1…m. Harmonic numbers give the sum in closed form; digamma makes it work for
    fractional weights too.
    """
    size = good + bad
    n1 = torch.cumsum(size, 1)
    if not size.requires_grad and bool((size == 1).all()):  # without ties and weights, the plain mean
        return (torch.cumsum(bad, 1) / n1).mean(1)
    n0, e0 = n1 - size, torch.cumsum(bad, 1) - bad
    psi = torch.digamma(torch.nn.functional.pad(n1, (1, 0)) + 1)
    harmonic = psi[:, 1:] - psi[:, :-1]  # Σ 1/(n₀ + j)
    slope = bad / size.clamp_min(1e-300)
    area = e0 * harmonic + slope * (size - n0 * harmonic)
    return area.sum(1) / n1[:, -1]


def best_aurc(good: Tensor, bad: Tensor) -> Tensor:
    """The AURC of a ranking with all errors last, at the same error rate; excess-AURC subtracts it."""
    right, wrong = good.sum(1), bad.sum(1)
    total = right + wrong
    harmonic = torch.digamma(total + 1) - torch.digamma(right + 1)
    return (wrong - right * harmonic) / total


def accuracy_coverage(good: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
    """(coverage, accuracy of what is accepted) after each run, most confident first."""
    size = torch.cumsum(good + bad, 1)
    return size / size[:, -1:], torch.cumsum(good, 1) / size.clamp_min(1e-300)
