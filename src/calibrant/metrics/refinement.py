"""Refinement: does confidence rank correct answers above errors? (DS Def. 2.2, Eq. 4)"""

from __future__ import annotations

from torch import Tensor

from calibrant.functional import ranking
from calibrant.metrics.table import Panel


def auroc(panel: Panel) -> Tensor:
    return ranking.auroc(*panel.runs)


def aupr_success(panel: Panel) -> Tensor:
    return ranking.aupr_success(*panel.runs)


def aupr_error(panel: Panel) -> Tensor:
    return ranking.aupr_error(*panel.runs)


def aurc(panel: Panel) -> Tensor:
    return panel.aurc


def eaurc(panel: Panel) -> Tensor:
    """AURC above that of a perfect ranking at the same error rate (exact finite sum: perfect gives 0)."""
    return panel.aurc - ranking.best_aurc(*panel.runs)


def fpr95(panel: Panel) -> Tensor:
    return ranking.fpr_at_tpr(*panel.runs)


def needs_both(panel: Panel) -> str | None:
    if panel.right == panel.n:
        return "all predictions are correct: there is no error to rank below them"
    if panel.right == 0:
        return "all predictions are wrong: there is no correct answer to rank above them"
    return None


def needs_top_label(panel: Panel) -> str | None:
    return None if panel.about == "top label" else "risk is about the predicted label, not the positive class"
