"""What each number of a report means, in plain words. A test checks that every metric has its sentence.

The other results of a report become small tables with a sentence each, for specialists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrant.report.panels import Panel, Table
from calibrant.types import Report

MEANING: dict[str, str] = {
    "accuracy": "How often the predicted class is the right one.",
    "nll": "Minus the logarithm of the probability given to the true class, on average. Confident errors cost most.",
    "brier": "Squared distance between the predicted probabilities and what happened, summed over classes (0 to 2).",
    "ece": "How far confidence is from accuracy, on average over groups of similar confidence.",
    "ece_mass": "ECE with bins that hold equally many items, instead of equally wide bins.",
    "ece_classwise": "ECE of every class's probability, averaged over classes: it also judges the classes that lost.",
    "ece_max": "How far confidence is from accuracy in the worst bin. Noisy when that bin holds few items.",
    "ece_l2": "ECE in which large errors weigh more (root mean square over the bins).",
    "ece_over": "The part of ECE from bins that are too sure.",
    "ece_under": "The part of ECE from bins that are not sure enough.",
    "oe": "Excess confidence, weighted by the confidence itself: being too sure counts most where confidence is high.",
    "ece_debiased": "ECE less what chance alone adds to it. A perfect model's ECE is never quite 0; this one can be.",
    "ks": "The largest calibration error that adds up over the items, sorted by confidence. It needs no bins.",
    "gap": "Average confidence minus accuracy. Above zero: too sure. Below: not sure enough.",
    "auroc": "The chance that a random correct answer is surer than a random error. 50% is a coin, 100% is perfect.",
    "aupr_success": "Precision of the surest answers, averaged over all thresholds.",
    "aupr_error": "Precision in finding errors by checking the least sure answers first, averaged over thresholds.",
    "aurc": "The error rate of the accepted items, averaged over every share of items that could be accepted.",
    "eaurc": "The part of AURC that a perfect ordering with the same accuracy would save. 0 is perfect.",
    "fpr95": "The share of errors let through when the threshold keeps 95% of the correct answers.",
}

BETTER = {"low": "Lower is better", "high": "Higher is better", "zero": "Closer to zero is better"}
ARROW = {"low": "↓", "high": "↑", "zero": "→0"}

FAMILY = {
    "proper": "Overall quality",
    "calibration": "Calibration: does it mean what it says?",
    "refinement": "Refinement: does confidence rank errors below correct answers?",
}

WORDS: dict[str, tuple[str, str]] = {
    "murphy_brier": (
        "Brier score, decomposed",
        "total = calibration (what a perfect recalibration of the bins would save) + refinement (what would remain) + "
        "residual (what varies inside bins).",
    ),
    "murphy_nll": (
        "NLL, decomposed",
        "The same parts of the negative log-likelihood. rest is what the top label cannot show: which class was right "
        "when the answer is wrong.",
    ),
    "ece_identity": (
        "ECE from confidence and AUROC",
        "ECE ≈ alpha − refinement term − gamma (On the Dark Side of Calibration, Eq. 9), with what it leaves "
        "unexplained. The derivation needs every bin to be overconfident; bins underconfident counts where that fails.",
    ),
    "accuracy_at_coverage": ("Accuracy at a coverage", "When only the surest share of the items is accepted."),
    "calibration_test": (
        "Test of calibration",
        "The ECE, compared with that of answers drawn from the confidences themselves.",
    ),
    "impossible_labels": (
        "Labels predicted to be impossible",
        "Items whose label was given a probability of 1e-30 or less (0 counts as 1e-30), and what they add to the NLL.",
    ),
    "ensemble": ("The members of the ensemble", "How much they disagree, on average over items."),
}


SHARES: dict[str, tuple[str, ...]] = {
    "ece_identity": ("alpha", "refinement_term", "gamma", "predicted", "residual"),  # together they are an ECE
    "accuracy_at_coverage": ("wanted",),
    "calibration_test": ("value", "expected_if_calibrated"),  # both are ECEs
    "ensemble": ("churn",),
}
"""Numbers in percent whose name alone does not say so."""


def details(report: Report) -> list[Panel]:
    """Return a panel for each extra of the report: a mapping becomes one row, a list of mappings a table.

    The bounds of a stream are left out, because a sentence of the report states them.
    """
    return [_detail(name, value) for name, value in report.extras.items() if name != "stream"]


def _detail(name: str, value: Any) -> Panel:
    title, words = WORDS.get(name, (name.replace("_", " "), ""))
    records = value if isinstance(value, (list, tuple)) else [value]
    records = [record if isinstance(record, Mapping) else {"value": record} for record in records]
    units = {share.replace("_", " "): "coverage" for share in SHARES.get(name, ())}
    spaced = [{str(key).replace("_", " "): each for key, each in record.items()} for record in records]
    return Panel(title, words, tables=[Table.of("", spaced, units=units)])
