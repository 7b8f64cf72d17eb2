"""Which intervals do not exist for want of errors, and which are known not to cover what they say: the report says so.

The table of regimes follows docs/coverage.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from calibrant.metrics.bca import NEWCOMBE
from calibrant.metrics.table import Panel
from calibrant.types import Estimate, Report

LEAST = {"auroc": 3, "aupr_success": 10, "aupr_error": 10, "aurc": 10, "eaurc": 10, "fpr95": 10}
"""Errors (or correct answers, whichever are fewer) below which there is no interval; AUROC's 3 are of Newcombe's."""
LEAST_DRAWN = 10
"""The same for any bootstrap."""
MANY = 50
"""From this many on, AUROC's bootstrap covers, and is the shorter interval."""


def rarer(panel: Panel) -> int:
    """Errors or correct answers, whichever are fewer; with groups, the groups that hold one."""
    group = panel.group
    if group is None:
        return min(int(c.sum()) for c in panel.runs)
    return min(len(torch.unique(group[panel.scores.correct == kind])) for kind in (True, False))


def too_few(name: str, rare: int, *, drawn: bool) -> str | None:
    """Why this metric has no interval (`drawn`: one of a bootstrap); None where it has one."""
    least = max(LEAST.get(name, 0), LEAST_DRAWN if drawn and name in LEAST else 0)
    return f"fewer than {least} errors or correct answers: no interval" if rare < least else None


@dataclass(frozen=True)
class Regime:
    """These metrics, under this condition, miss the nominal coverage; `words` says how.

    `holds` asks for the number of errors or correct answers, whichever are fewer, and for the estimate.
    """

    metrics: frozenset[str]
    holds: Callable[[int, Estimate], bool]
    words: str


FEW, SHORT = f"fewer than {MANY} errors or correct answers", "may cover less than 90%"

REGIMES: tuple[Regime, ...] = (
    Regime(
        frozenset({"auroc"}),
        lambda rare, estimate: estimate.method == NEWCOMBE,
        "few errors: wide, may cover more than 99%",
    ),
    Regime(
        frozenset({"fpr95"}),
        lambda rare, estimate: rare < MANY,
        "a share of few errors moves in steps: may cover more than 99%",
    ),
    Regime(
        (frozenset(LEAST) - {"fpr95"})
        | {"nll", "brier", "gap", "ece", "ece_debiased", "ece_classwise", "ece_max", "ece_over", "oe", "ks"},
        lambda rare, estimate: estimate.method != NEWCOMBE and rare < MANY,
        f"{FEW}: {SHORT}",
    ),
    Regime(
        frozenset({"ece", "ece_mass", "ece_l2", "ece_over", "ece_under", "oe", "ece_debiased", "ks"}),
        lambda rare, estimate: estimate.low == 0,
        "at the boundary 0: may cover more than 99%",
    ),
    Regime(
        frozenset({"ece_classwise"}),
        lambda rare, estimate: True,
        "classes of an item taken to be as dependent as they can be: may cover more than 99%",
    ),
    Regime(
        frozenset({"ece_max"}),
        lambda rare, estimate: True,
        "lower end valid for all bins at once: may cover more than 99%",
    ),
)
"""From the coverage tables: every cell outside 90–99% has a line here, and a test checks that. The first that holds is
said."""


def caveat(name: str, estimate: Estimate, rare: int) -> Estimate:
    """The estimate with a note in its `method` when its interval is in a regime that does not cover."""
    if estimate.low is None:
        return estimate
    words = next((r.words for r in REGIMES if name in r.metrics and r.holds(rare, estimate)), None)
    return estimate if words is None else replace(estimate, method=f"{estimate.method}; {words}")


def caveats_line(report: Report) -> str | None:
    """Which intervals of a report are known to be too short, for people; None where none is."""
    names = [name for name, e in report.metrics.items() if SHORT in (e.method or "")]
    return f"{FEW}: the intervals of {', '.join(names)} {SHORT}" if names else None
