"""What `Report.extras` holds besides the metrics: decompositions, the ECE identity, ensemble members, coverage."""

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
from calibrant.metrics.panel import Panel

COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""The coverages at which accuracy is reported."""


def extras(panel: Panel, resampling: Resampling | None = None, *, whole: bool = True) -> dict[str, Any]:
    """The extras of a report; the decompositions only with `whole`, not when single metrics were asked for."""
    scores = panel.scores
    out: dict[str, Any] = {}
    if whole:
        out |= {
            "murphy_brier": asdict(murphy_brier(scores, panel.width)),
            "murphy_nll": asdict(murphy_nll(scores, panel.width)),
        }
    if whole and scores.about == "top label":  # both are about correct answers, not about class 1
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
    """The accuracy of the most confident items at each coverage. Ties are accepted together, so the coverage may be
    higher than wanted."""
    curve = torch.cat(accuracy_coverage(*panel.runs))
    wanted = curve.new_tensor(COVERAGES)
    at = torch.searchsorted(curve[0], wanted - 1e-12).clamp_max(curve.shape[1] - 1)
    rows = zip(COVERAGES, *curve[:, at].tolist(), strict=True)
    return [{"wanted": w, "coverage": c, "accuracy": a} for w, c, a in rows]


def impossible_labels(log_p_label: Tensor | None) -> dict[str, float] | None:
    """The number of items whose label has at most the floor's probability, and their part of the NLL; None if none.

    A forest or a table of counts gives 0 to what it has not seen. Three such items of 2,000 add 0.1 to the NLL.
    """
    if log_p_label is None:
        return None
    never = log_p_label <= math.log(FLOOR) + 1e-6
    count = int(never.sum())
    if not count:
        return None
    return {"items": float(count), "nll": float(-log_p_label[never].sum() / len(log_p_label))}


def ensemble_numbers(d: Disagreement) -> dict[str, float]:
    """Means over items; `variance` is the variance over members of the true class's probability (AR §3.1)."""
    return {
        "members": float(len(d.votes)),
        "predictive_entropy": float(d.predictive_entropy.mean()),
        "expected_entropy": float(d.expected_entropy.mean()),
        "mutual_information": float(d.mutual_information.mean()),
        "variance": float(d.variance.mean()),
        "churn": float(d.churn().mean()),
    }
