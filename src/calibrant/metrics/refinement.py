"""Refinement: does confidence rank correct answers above errors? (DS Def. 2.2, Eq. 4) Functions of the ordered runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from calibrant.functional import ranking

if TYPE_CHECKING:
    from calibrant.metrics.panel import Panel


@dataclass(frozen=True)
class Runs:
    """The weights of the correct and of the incorrect items in each run of ties, [B, R], most confident first."""

    good: Tensor
    bad: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield from (self.good, self.bad)

    @cached_property
    def auroc(self) -> Tensor:
        """AUROC, which the ECE identity uses too."""
        return ranking.auroc(self.good, self.bad)

    @cached_property
    def aurc(self) -> Tensor:
        """AURC, which its excess uses too; the harmonic numbers are most of the cost."""
        return ranking.aurc(self.good, self.bad)


@dataclass(frozen=True)
class Ranked:
    """A metric of the ranking, as a function of the runs."""

    of: Callable[[Runs], Tensor]

    def __call__(self, panel: Panel) -> Tensor:
        return self.of(panel.runs)


def auroc(runs: Runs) -> Tensor:
    return runs.auroc


def aupr_success(runs: Runs) -> Tensor:
    return ranking.aupr_success(*runs)


def aupr_error(runs: Runs) -> Tensor:
    return ranking.aupr_error(*runs)


def aurc(runs: Runs) -> Tensor:
    return runs.aurc


def eaurc(runs: Runs) -> Tensor:
    """AURC minus that of a perfect ranking at the same error rate; exactly 0 for a perfect ranking."""
    return runs.aurc - ranking.best_aurc(*runs)


def fpr95(runs: Runs) -> Tensor:
    return ranking.fpr_at_tpr(*runs)


def needs_both(panel: Panel) -> str | None:
    if panel.right == panel.n:
        return "all predictions are correct: there is no error to rank below them"
    if panel.right == 0:
        return "all predictions are wrong: there is no correct answer to rank above them"
    return None


def needs_top_label(panel: Panel) -> str | None:
    return None if panel.about == "top label" else "risk is about the predicted label, not the positive class"
