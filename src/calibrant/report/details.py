"""The further results of a report as small tables with one sentence each, for specialists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.report.numbers import cell
from calibrant.types import Report

WORDS: dict[str, tuple[str, str]] = {
    "murphy_brier": (
        "Brier score, decomposed",
        "total = calibration (what a perfect recalibration of the bins would save) + refinement (what would be left) + "
        "residual (what varies inside bins).",
    ),
    "murphy_nll": (
        "NLL, decomposed",
        "The same for the negative log-likelihood; rest is what the top label does not see: which class it was, once "
        "the answer is wrong.",
    ),
    "ece_identity": (
        "ECE from confidence and AUROC",
        "ECE ≈ alpha − refinement term − gamma (On the Dark Side of Calibration, Eq. 9), with what it leaves "
        "unexplained. Its derivation needs every bin to be overconfident; bins underconfident counts where that fails.",
    ),
    "accuracy_at_coverage": ("Accuracy at a coverage", "When only the surest share of the items is accepted."),
    "calibration_test": ("Test of calibration", "Answers are drawn again from the confidences themselves."),
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


@dataclass(frozen=True)
class Detail:
    title: str
    words: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def details(report: Report) -> list[Detail]:
    """Every extra of the report, known or not: a mapping is one row, a list of mappings is a table.

    The bounds of a stream are a sentence elsewhere, beside what a stream cannot show."""
    return [_detail(name, value) for name, value in report.extras.items() if name != "stream"]


def _detail(name: str, value: Any) -> Detail:
    title, words = WORDS.get(name, (name.replace("_", " "), ""))
    if isinstance(value, Mapping):
        rows: Sequence[Any] = [value]
    elif isinstance(value, (list, tuple)) and all(isinstance(row, Mapping) for row in value):
        rows = value
    else:
        rows = [{"value": value}]
    columns = tuple(dict.fromkeys(str(key) for row in rows for key in row))
    units = {column: "coverage" if column in SHARES.get(name, ()) else column for column in columns}
    cells = tuple(tuple(cell(row.get(column), units[column]) for column in columns) for row in rows)
    return Detail(title, words, tuple(column.replace("_", " ") for column in columns), cells)
