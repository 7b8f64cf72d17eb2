"""Rankings of few errors: which of their intervals exist, and AUROC's own (Newcombe 2006, method 5).

A bootstrap of a handful of errors has not seen the confident one that moves AUROC and AURC most, so its interval is too
short. Newcombe's variance depends on the AUROC θ that is tried, not on the errors that were seen:

    (θ̂ − θ)² = z² θ(1 − θ) / (mn) · [1 + N* (1 − θ)/(2 − θ) + N* θ/(1 + θ)],   N* = (m + n)/2 − 1

of m errors and n correct answers; the ends of the interval are its two roots.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from calibrant.functional.scores import Scores
from calibrant.metrics.bca import normal_quantile

LEAST = {"auroc": 3, "aupr_success": 10, "aupr_error": 10, "aurc": 10, "eaurc": 10, "fpr95": 10}
"""Errors (or correct answers, whichever are fewer) below which there is no interval; AUROC's 3 are of Newcombe's."""
LEAST_DRAWN = 10
"""The same for any bootstrap."""
MANY = 50
"""From this many on, AUROC's bootstrap covers, and is the shorter interval."""
NEWCOMBE = "Newcombe 2006, method 5"


def rarer(scores: Scores) -> int:
    """Errors or correct answers, whichever are fewer; with groups, the groups that hold one."""
    if scores.group is None:
        right = int(scores.correct.sum())
        return min(right, scores.n - right)
    return min(len(torch.unique(scores.group[scores.correct == kind])) for kind in (True, False))


def too_few(name: str, rare: int, *, drawn: bool) -> str | None:
    """Why this metric has no interval (`drawn`: one of a bootstrap); None where it has one."""
    least = max(LEAST.get(name, 0), LEAST_DRAWN if drawn and name in LEAST else 0)
    return f"fewer than {least} errors or correct answers: no interval" if rare < least else None


def newcombe(auroc: float, errors: int, correct: int, level: float) -> tuple[float, float]:
    """The range of θ that the score test accepts."""
    z2 = normal_quantile((1 + level) / 2) ** 2
    middle = (errors + correct) / 2 - 1

    def rejected(theta: float) -> bool:
        variance = theta * (1 - theta) / (errors * correct)
        variance *= 1 + middle * (1 - theta) / (2 - theta) + middle * theta / (1 + theta)
        return (auroc - theta) ** 2 > z2 * variance

    return _edge(rejected, 0.0, auroc), _edge(rejected, 1.0, auroc)


def _edge(rejected: Callable[[float], bool], outside: float, inside: float) -> float:
    """Where rejection ends on the way from `outside` to `inside`, by bisection."""
    for _ in range(60):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if rejected(middle) else (outside, middle)
    return inside
