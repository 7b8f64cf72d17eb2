"""Accuracy and the proper scores of each item; the metric is their mean.

NLL = −log p_y, Brier = Σ_k (p_k − 1[k = y])² (PEP app. B, sum form).
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.functional.scores import Scores


def accuracy(scores: Scores) -> Tensor:
    return (scores.predicted == scores.labels).double()


def nll(scores: Scores) -> Tensor:
    assert scores.log_p_label is not None
    return 0 - scores.log_p_label  # never −0.0


def brier(scores: Scores) -> Tensor:
    assert scores.brier is not None
    return scores.brier


def needs_label_probability(scores: Scores) -> str | None:
    if scores.log_p_label is None:
        return "a top-1 file has no probability of the label"
    return None


def needs_possible_labels(scores: Scores) -> str | None:
    if scores.log_p_label is None:
        return needs_label_probability(scores)
    impossible = torch.isneginf(scores.log_p_label)
    if bool(impossible.any()):
        row = int(impossible.nonzero()[0])
        return f"infinite: the label in row {row} was called impossible (logit -inf)"
    return None
