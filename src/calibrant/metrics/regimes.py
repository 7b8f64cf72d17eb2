"""Where an interval is known not to cover what it says (docs/coverage.md), so that the report says it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from calibrant.functional.scores import Scores
from calibrant.metrics.few_errors import LEAST, NEWCOMBE, rarer
from calibrant.types import Estimate


@dataclass(frozen=True)
class Regime:
    """These metrics, under this condition, miss the nominal coverage; `words` says how."""

    metrics: frozenset[str]
    holds: Callable[[Scores, Estimate], bool]
    words: str


SOME = 30
"""Errors (or correct answers) below which skewed means and rankings are not covered."""

REGIMES: tuple[Regime, ...] = (
    Regime(
        frozenset({"auroc"}),
        lambda scores, estimate: estimate.method == NEWCOMBE,
        "few errors: wide, may cover more than 99%",
    ),
    Regime(
        frozenset(LEAST) | {"nll", "brier", "gap", "ks"},
        lambda scores, estimate: estimate.method != NEWCOMBE and rarer(scores) < SOME,
        f"fewer than {SOME} errors or correct answers: may cover less than 90%",
    ),
    Regime(
        frozenset({"ece", "ece_mass", "ece_l2", "ece_over", "ece_under", "oe", "ece_debiased", "ks"}),
        lambda scores, estimate: estimate.low == 0,
        "at the boundary 0: may cover more than 99%",
    ),
    Regime(
        frozenset({"ece_classwise"}),
        lambda scores, estimate: True,
        "classes of an item taken to be as dependent as they can be: may cover more than 99%",
    ),
    Regime(
        frozenset({"ece_max"}),
        lambda scores, estimate: True,
        "lower end valid for all bins at once: may cover more than 99%",
    ),
)
"""From the coverage table: every cell outside 90–99% has a line here, and a test checks that."""


def caveat(name: str, estimate: Estimate, scores: Scores) -> Estimate:
    """The estimate with a note in its `method` when its interval is in a regime that does not cover."""
    notes = [r.words for r in REGIMES if name in r.metrics and estimate.low is not None and r.holds(scores, estimate)]
    return replace(estimate, method="; ".join([estimate.method or "", *notes])) if notes else estimate
