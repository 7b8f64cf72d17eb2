"""Accuracy and the proper scores of each item. The metric is their mean.

NLL = −log p_y, Brier = Σ_k (p_k − 1[k = y])² (PEP app. B, sum form).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from calibrant.functional.scores import Scores

if TYPE_CHECKING:
    from calibrant.metrics.panel import Panel

Column = Callable[[Scores], Tensor]
"""Scores → one number per item, [N]."""


@dataclass(frozen=True)
class Mean:
    """A metric that is the mean of a column."""

    column: Column

    def __call__(self, panel: Panel) -> Tensor:
        return panel.mean_of(self.column)


def accuracy(scores: Scores) -> Tensor:
    return (scores.predicted == scores.labels).double()


def nll(scores: Scores) -> Tensor:
    assert scores.log_p_label is not None
    return 0 - scores.log_p_label  # never −0.0


def brier(scores: Scores) -> Tensor:
    assert scores.brier is not None
    return scores.brier


def needs_label_probability(panel: Panel) -> str | None:
    return "a top-1 file has no probability of the label" if panel.k is None else None


def needs_possible_labels(panel: Panel) -> str | None:
    if panel.k is not None and panel.impossible is not None:
        return f"infinite: {panel.impossible} (logit -inf)"
    return needs_label_probability(panel)
