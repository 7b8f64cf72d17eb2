"""Is the model calibrated at all? Consistency resampling (Bröcker & Smith 2007; Vaicenavicius 2019).

If confidences are right, the answers are draws from them: the correct answers of each bin are drawn again from the
confidences in it, and ECE is computed again. p = share of simulations with an ECE at least as large as the observed
one. With groups, answers of a group hang together, and the simulation is Gaussian with the covariance of the groups'
sums instead.
"""

from __future__ import annotations

from typing import Any

import torch

from calibrant.metrics.calibration_cells import Cells, noise, observed_gaps
from calibrant.metrics.conventions import Resampling


def calibration_test(bins: Cells, resampling: Resampling) -> dict[str, Any]:
    """Of the occupied bins of confidence; the observed ECE counts among the simulated ones, so p is never 0."""
    observed = float((bins.mass * bins.gap).abs().sum())
    if bins.factor is not None and not bool(bins.factor.any()):
        return {
            "statistic": "ece",
            "value": observed,
            "p": None,
            "reason": "one group, or all alike: their noise is not known",
        }
    random = noise(len(bins.count), resampling.replicates, resampling.seed + 1)
    none = torch.zeros(1, len(bins.count), dtype=torch.float64)
    simulated = observed_gaps(bins, none, random)[0].abs().sum(-1)
    exceed = int((simulated >= observed * (1 - 1e-12)).sum())
    return {
        "statistic": "ece",
        "value": observed,
        "expected_if_calibrated": float(simulated.mean()),
        "p": (exceed + 1) / (len(simulated) + 1),
        "tests": (
            "the confidences are right, by ECE: small p means miscalibrated; "
            "large p means that these items cannot show it"
        ),
    }
