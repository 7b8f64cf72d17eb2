"""A proper score is calibration plus refinement (Murphy 1973), and ECE is α − r·β − γ (DS Eq. 9).

The split is not exact, because confidences also vary within a bin; the difference is the `residual`, which is always
shown. The argument `bins` holds the sums in bins of the top-label event, if they are known already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.functional.binning import BinSums, bin_sums, equal_width
from calibrant.functional.ranking import auroc, rank, run_weights
from calibrant.functional.scores import Scores


@dataclass(frozen=True)
class Murphy:
    """total = calibration + refinement + residual + rest.

    `calibration` is what a perfect recalibration of the bins would save, and `refinement` what would remain.
    `residual` comes from the variation within bins. `rest` is the part of NLL that is not about the top label (which
    class it was when the prediction is wrong); it is 0 for Brier.
    """

    total: float
    calibration: float
    refinement: float
    residual: float
    rest: float
    about: str


def murphy_brier(scores: Scores, bins: BinSums | None = None) -> Murphy:
    """The Brier score, summed over classes: Σ_k Σ_b n_kb/N · (conf_kb − acc_kb)² and Σ n_kb/N · acc(1 − acc).

    For a top-1 file, the Brier score of the event "the prediction is right".
    """
    if scores.classwise is not None and scores.brier is not None:
        cells, total = scores.classwise, float(scores.brier.mean())
        count, conf, hit, about = cells.count, cells.confidence, cells.positive, "all classes"
    else:
        sums = bins or event_bins(scores)
        count, conf, hit, about = sums.count[0], sums.confidence[0], sums.correct[0], "top label"
        total = float((scores.confidence - scores.correct.double()).square().mean())
    size = count.clamp_min(1e-300)
    calibration = float((count * (conf / size - hit / size).square()).sum() / scores.n)
    refinement = float((count * (hit / size) * (1 - hit / size)).sum() / scores.n)
    return Murphy(total, calibration, refinement, total - calibration - refinement, 0.0, about)


def murphy_nll(scores: Scores, bins: BinSums | None = None) -> Murphy:
    """NLL: the averages of KL(acc_b ‖ conf_b) and of H(acc_b) over the bins of the top-label event."""
    log_sure, log_error = torch.log(scores.confidence), scores.log_error
    event = 0 - float(torch.where(scores.correct, log_sure, log_error).mean())
    total = event if scores.log_p_label is None else 0 - float(scores.log_p_label.mean())
    if scores.about == "positive class":  # for two classes the event is the label itself; log p₁ may underflow
        event = total
    sums = bins or event_bins(scores)
    share, acc, conf = sums.count[0] / scores.n, sums.accuracy[0], sums.mean_confidence[0]
    missed = (1 - acc) * _log_missing(log_error, scores, conf).masked_fill(acc == 1, 0.0)
    cross = -torch.special.xlogy(acc, conf) - missed
    entropy = torch.special.entr(acc) + torch.special.entr(1 - acc)
    calibration, refinement = float((share * (cross - entropy)).sum()), float((share * entropy).sum())
    return Murphy(total, calibration, refinement, event - calibration - refinement, total - event, scores.about)


@dataclass(frozen=True)
class Identity:
    """DS Eq. 9: ECE ≈ α − refinement_term − γ. Eq. 8 equates accuracy with an average over all
    thresholds, so a residual remains; and the derivation assumes that every bin is overconfident."""

    alpha: float  # E[confidence]
    auroc: float | None
    refinement_term: float | None  # β of the paper's brace: r·2PN/n², r included
    gamma: float  # (P² + N²) / 2n²
    predicted: float | None  # α − β − γ
    ece: float
    residual: float | None  # ece − predicted
    bins: int  # bins that hold items
    bins_underconfident: int  # those where accuracy exceeds confidence, against the assumption


def ece_identity(scores: Scores, refinement: float | None = None, bins: BinSums | None = None) -> Identity:
    """DS Eq. 9 for these scores. `refinement` is their AUROC, if it is known already; only AUROC needs a sort."""
    sums = bins or event_bins(scores)
    right, n = scores.right, scores.n
    wrong = n - right
    ece = float(sums.gap.abs().sum())
    alpha, gamma = float(scores.confidence.mean()), (right**2 + wrong**2) / (2 * n**2)
    held = sums.count[0] > 0
    under = int((held & (sums.accuracy[0] > sums.mean_confidence[0])).sum())
    if right == 0 or wrong == 0:
        return Identity(alpha, None, None, gamma, None, ece, None, int(held.sum()), under)
    r = refinement
    if r is None:
        r = float(auroc(*run_weights(rank(scores.log_error), scores.correct)))
    beta = r * 2 * right * wrong / n**2
    predicted = alpha - beta - gamma
    return Identity(alpha, r, beta, gamma, predicted, ece, ece - predicted, int(held.sum()), under)


def _log_missing(log_error: Tensor, scores: Scores, conf: Tensor) -> Tensor:
    """log(1 − mean confidence) of each bin. Near 1 this loses its digits, so there 1 − p is averaged instead."""
    out = torch.log1p(-conf)
    for b in (conf > 1 - 1e-4).nonzero()[:, 0].tolist():  # the last bin, or none
        inside = log_error[equal_width(scores.confidence, scores.bins) == b]
        out[b] = torch.logsumexp(inside, 0) - math.log(len(inside))
    return out


def event_bins(scores: Scores) -> BinSums:
    """The sums in equal-width bins of confidence, from which reliability diagrams are drawn too."""
    index = equal_width(scores.confidence, scores.bins)
    return bin_sums(index, scores.bins, scores.confidence, scores.correct)
