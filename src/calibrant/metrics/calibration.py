"""Calibration errors of confidence: binned (ECE and its variants), classwise, debiased, binless (KS).

With gap_b = (Σ conf − Σ correct)/N in bin b:  ECE = Σ_b |gap_b|,  over/under its positive/negative
part, ece_max = max_b |conf_b − acc_b| over bins that hold items, ece_l2 = √Σ_b n_b/N (conf_b − acc_b)².
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from calibrant.functional.binning import BinSums
from calibrant.functional.scores import Scores
from calibrant.metrics.table import Panel


def ece(panel: Panel) -> Tensor:
    return panel.width.gap.abs().sum(-1)


def ece_mass(panel: Panel) -> Tensor:
    """Equal-mass bins (adaptive ECE, Nixon 2020), ties kept together."""
    return panel.mass.gap.abs().sum(-1)


def ece_l2(panel: Panel) -> Tensor:
    return _l2(panel.width)


def ece_max(panel: Panel) -> Tensor:
    s = panel.width
    return ((s.mean_confidence - s.accuracy).abs() * (s.count > 0)).amax(-1)


def ece_over(panel: Panel) -> Tensor:
    """The part of ECE from bins that are overconfident; with `ece_under` it sums to ECE."""
    return panel.width.gap.clamp_min(0).sum(-1)


def ece_under(panel: Panel) -> Tensor:
    return (-panel.width.gap).clamp_min(0).sum(-1)


def oe(panel: Panel) -> Tensor:
    """Overconfidence error (Thulasidasan 2019): Σ_b n_b/N · conf_b · max(conf_b − acc_b, 0)."""
    return (panel.width.mean_confidence * panel.width.gap.clamp_min(0)).sum(-1)


def gap(scores: Scores) -> Tensor:
    """Confidence − correctness of each item: a positive mean is overconfident."""
    return scores.confidence - scores.correct.double()


def ece_debiased(panel: Panel) -> Tensor:
    """ECE less its own upward bias (Kumar 2019 §G, in closed form), not below 0.

    With accuracy of bin b ~ N(acc_b, acc_b(1−acc_b)/n_b), the expectation of |gap| is a folded
    normal's; what it exceeds the observed |gap| by is the bias.
    """
    s = panel.width
    acc = s.accuracy
    sd = (acc * (1 - acc) * s.count).clamp_min(0).sqrt() / s.total
    excess = folded_mean(s.gap, sd) - s.gap.abs()
    return (s.gap.abs() - excess).sum(-1).clamp_min(0)


def folded_mean(mean: Tensor, sd: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, sd²)."""
    safe = sd.clamp_min(1e-300)
    z = mean / safe
    density = torch.exp(-z * z / 2) * math.sqrt(2 / math.pi)
    return torch.where(sd > 0, sd * density + mean * torch.erf(z / math.sqrt(2)), mean.abs())


def ece_classwise(panel: Panel) -> Tensor:
    """Mean over classes of the one-vs-rest ECE (Nixon 2020; Kull 2019)."""
    cells = panel.classwise
    assert cells is not None and panel.weights is None, "classwise sums are kept per cell, not per item"
    return ((cells.confidence - cells.positive).abs().sum() / (panel.n * len(cells.count)))[None]


def ks(panel: Panel) -> Tensor:
    """Kolmogorov–Smirnov calibration error (Gupta 2021): max_t |Σ_{conf ≤ t} (conf − correct)| / N."""
    walk = torch.cumsum(panel.walk.flip(1), 1)  # only whole runs of ties can be cut off; from the least confident up
    return walk.abs().amax(1) / panel.total


def _l2(s: BinSums) -> Tensor:
    return (s.count / s.total * (s.mean_confidence - s.accuracy).square()).sum(-1).sqrt()


def needs_classes(panel: Panel) -> str | None:
    return "a top-1 file has no probabilities of the other classes" if panel.classwise is None else None
