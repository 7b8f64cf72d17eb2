"""What a report holds besides one number per metric: decompositions, the ECE identity, members, coverage."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from calibrant.functional.decomposition import ece_identity, murphy_brier, murphy_nll
from calibrant.functional.pooling import Disagreement
from calibrant.functional.probabilities import FLOOR
from calibrant.functional.ranking import accuracy_coverage
from calibrant.metrics.calibration_intervals import calibration_test
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.table import Panel

COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Where accuracy against coverage is reported."""


def extras(panel: Panel, resampling: Resampling | None = None, *, whole: bool = True) -> dict[str, Any]:
    """Everything for the `whole` panel; who asks for a metric or two gets no decompositions and pays for none."""
    scores = panel.scores
    out: dict[str, Any] = {}
    if whole:
        out |= {
            "murphy_brier": asdict(murphy_brier(scores, panel.width)),
            "murphy_nll": asdict(murphy_nll(scores, panel.width)),
        }
    if whole and scores.about == "top label":  # both are about being right, not about class 1
        out["ece_identity"] = asdict(ece_identity(scores, float(panel.runs.auroc), panel.width))
        out["accuracy_at_coverage"] = accuracy_at_coverage(panel)
    if resampling is not None:
        out["calibration_test"] = calibration_test(panel.cells("width"), resampling)
    if (never := impossible_labels(scores.log_p_label)) is not None:
        out["impossible_labels"] = never
    if scores.members is not None:
        out["ensemble"] = ensemble_numbers(scores.members)
    return out


def accuracy_at_coverage(panel: Panel) -> list[dict[str, float]]:
    """Accuracy of the most confident items at each coverage, ties accepted whole (so coverage may exceed it)."""
    curve = torch.cat(accuracy_coverage(*panel.runs))
    wanted = curve.new_tensor(COVERAGES)
    at = torch.searchsorted(curve[0], wanted - 1e-12).clamp_max(curve.shape[1] - 1)
    rows = zip(COVERAGES, *curve[:, at].tolist(), strict=True)
    return [{"wanted": w, "coverage": c, "accuracy": a} for w, c, a in rows]


def impossible_labels(log_p_label: Tensor | None) -> dict[str, float] | None:
    """Items whose label has the floor's probability or less, and their part of the NLL; None where there are none.

    A forest or a table of counts says 0 for what it has not seen: three such items of 2,000 are a tenth of an NLL of 1.
    """
    if log_p_label is None:
        return None
    never = log_p_label <= math.log(FLOOR) + 1e-6
    count = int(never.sum())
    if not count:
        return None
    return {"items": float(count), "nll": float(-log_p_label[never].sum() / len(log_p_label))}


def ensemble_numbers(d: Disagreement) -> dict[str, float]:
    """Means over items; variance is of the true class's probability over members (AR §3.1)."""
    return {
        "members": float(len(d.votes)),
        "predictive_entropy": float(d.predictive_entropy.mean()),
        "expected_entropy": float(d.expected_entropy.mean()),
        "mutual_information": float(d.mutual_information.mean()),
        "variance": float(d.variance.mean()),
        "churn": float(d.churn().mean()),
    }
