"""The table of metrics. A new metric is one function, one line in `METRICS`, and one case in a test."""

from __future__ import annotations

from calibrant.errors import suggest_names
from calibrant.metrics import calibration as c
from calibrant.metrics import proper as p
from calibrant.metrics import refinement as r
from calibrant.metrics.panel import Metric, Panel
from calibrant.metrics.proper import Mean
from calibrant.metrics.refinement import Ranked

METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("accuracy", "accuracy", "proper", "high", Mean(p.accuracy)),
        Metric("nll", "negative log-likelihood", "proper", "low", Mean(p.nll), p.needs_possible_labels, percent=False),
        Metric("brier", "Brier score", "proper", "low", Mean(p.brier), p.needs_label_probability, percent=False),
        Metric("ece", "expected calibration error", "calibration", "low", c.ECE),
        Metric("ece_mass", "ECE, equal-mass bins", "calibration", "low", c.ECE_MASS),
        Metric("ece_classwise", "ECE, mean over classes", "calibration", "low", c.ece_classwise, c.needs_classes),
        Metric("ece_max", "largest bin error", "calibration", "low", c.ECE_MAX),
        Metric("ece_l2", "ECE, root mean square", "calibration", "low", c.ECE_L2),
        Metric("ece_over", "ECE of overconfident bins", "calibration", "low", c.ECE_OVER),
        Metric("ece_under", "ECE of underconfident bins", "calibration", "low", c.ECE_UNDER),
        Metric("oe", "overconfidence error", "calibration", "low", c.OE),
        Metric("ece_debiased", "ECE, debiased", "calibration", "low", c.ece_debiased),
        Metric("ks", "Kolmogorov–Smirnov error", "calibration", "low", c.KS),
        Metric("gap", "confidence − accuracy", "calibration", "zero", Mean(c.gap)),
        Metric("auroc", "AUROC of confidence", "refinement", "high", Ranked(r.auroc), r.needs_both),
        Metric("aupr_success", "AUPR, correct answers", "refinement", "high", Ranked(r.aupr_success), r.needs_both),
        Metric("aupr_error", "AUPR, errors", "refinement", "high", Ranked(r.aupr_error), r.needs_both),
        Metric("aurc", "area under risk–coverage", "refinement", "low", Ranked(r.aurc), r.needs_top_label),
        Metric("eaurc", "excess AURC", "refinement", "low", Ranked(r.eaurc), r.needs_top_label),
        Metric("fpr95", "FPR at 95% TPR", "refinement", "low", Ranked(r.fpr95), r.needs_both),
    )
}

__all__ = ["METRICS", "Metric", "Panel"]

suggest_names(__name__)
