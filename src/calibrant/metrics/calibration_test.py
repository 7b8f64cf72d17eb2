"""Is the model calibrated at all? Consistency resampling (Bröcker & Smith 2007; Vaicenavicius 2019).

If confidences are right, the answers are draws from them: labels are simulated from the confidences
of these very items and ECE is computed again. p = share of simulations with an ECE at least as large
as the observed one, so it is valid at any N. With groups, answers of a group hang together, and the
simulation is Gaussian with the covariance of the groups' sums instead.
"""

from __future__ import annotations

from typing import Any

import torch

from calibrant.metrics.conventions import Resampling
from calibrant.metrics.gaps import cells, noise, observed_gaps
from calibrant.metrics.table import Panel

_CHUNK = 1 << 22


def calibration_test(panel: Panel, resampling: Resampling) -> dict[str, Any]:
    scores = panel.scores
    observed = float(panel.width.gap.abs().sum())
    if scores.group is not None and int(scores.group.max()) == 0:
        return {"statistic": "ece", "value": observed, "p": None, "reason": "one group: its noise is not known"}
    if scores.group is None:
        simulated = _from_confidences(panel, resampling)
    else:
        c = cells(panel.width_index, scores.confidence, scores.correct, scores.group)
        random = noise(len(c.count), resampling.replicates, resampling.seed)
        simulated = observed_gaps(c, torch.zeros(1, len(c.count), dtype=torch.float64), random)[0].abs().sum(-1)
    return outcome(observed, simulated)


def outcome(observed: float, simulated: torch.Tensor) -> dict[str, Any]:
    """The observed ECE among those of calibrated predictors; the observed one counts among them, so p is never 0."""
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


def _from_confidences(panel: Panel, resampling: Resampling) -> torch.Tensor:
    """ECE of answers drawn from the confidences, [replicates]."""
    scores, bins = panel.scores, panel.scores.bins
    order = torch.argsort(panel.width_index, stable=True)
    sure = scores.confidence[order]
    count = torch.bincount(panel.width_index, minlength=bins)
    held = count[count > 0].tolist()
    expected = torch.stack([part.sum() for part in torch.split(sure, held)])
    generator = torch.Generator().manual_seed(resampling.seed + 1)
    rows, out = max(1, _CHUNK // scores.n), []
    single = sure.float()  # 24 bits of a uniform decide a label well enough
    uniform = torch.empty(min(rows, resampling.replicates), scores.n)  # one piece of memory for all of them
    for start in range(0, resampling.replicates, rows):
        part = uniform[: resampling.replicates - start]
        drawn = torch.rand(part.shape, generator=generator, out=part) < single
        hits = torch.stack([part.sum(1) for part in torch.split(drawn, held, 1)], 1)
        out.append((expected - hits).abs().sum(1) / scores.n)
    return torch.cat(out)
