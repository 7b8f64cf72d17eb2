"""PEP's σ curve (PEP Fig. 1): log-likelihood of the ensemble and of its members, and ECE and Brier, along σ.

The band is ± 2 standard errors of the gain over the network itself, item by item: where it stays above the dashed line,
the gain is more than the luck of the held-out items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant.report.plots.style import COLOURS, legend, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from calibrant.ensembles.sigma import SigmaPoint


def sigma_likelihood(points: Sequence[SigmaPoint], *, ax: Axes | None = None) -> Axes:
    """L(σ): the ensemble with its band, each member thin; the dashed line is the model itself (σ = 0)."""
    ax = ax or new_axes()
    seen = _finite(points)
    sigma = np.array([p.sigma for p in seen])
    mean = np.array([p.log_likelihood for p in seen])
    error = np.nan_to_num(np.array([p.standard_error if p.gain_error is None else p.gain_error for p in seen]))
    members = max((len(p.members) for p in seen), default=0)
    for j in range(members):
        alone = [p for p in seen if len(p.members) == members or p.sigma == 0]
        line = [p.members[j] if len(p.members) == members else p.members[0] for p in alone]
        ax.plot([p.sigma for p in alone], line, color=COLOURS["muted"], linewidth=0.6, alpha=0.6)
    ax.fill_between(sigma, mean - 2 * error, mean + 2 * error, color=COLOURS["accent"], alpha=0.15, linewidth=0)
    ax.plot(sigma, mean, color=COLOURS["accent"], linewidth=1.6, marker="o", markersize=3, label="ensemble, L(σ)")
    best = int(mean.argmax())
    ax.plot(sigma[best], mean[best], "o", color=COLOURS["good"], markersize=6, label=f"σ* = {sigma[best]:.3g}")
    ax.axhline(mean[0], color=COLOURS["muted"], linewidth=1, dashes=(4, 3))
    # members fall off a cliff beyond σ*; what matters is near the ensemble's own curve
    low, high = float((mean - 2 * error).max() - 3 * np.ptp(mean[: best + 1]) - 0.05), float((mean + 2 * error).max())
    ax.set_ylim(max(low, float(mean.min()) - 0.05), high + 0.05 * (high - low))
    ax.locator_params(axis="x", nbins=5)  # four decimals each: more labels touch
    ax.set_xlabel("σ of the perturbation")
    ax.set_ylabel("mean log-likelihood")
    legend(ax)
    return ax


def sigma_errors(points: Sequence[SigmaPoint], *, ax: Axes | None = None) -> Axes:
    """ECE and Brier of the ensemble along σ."""
    ax = ax or new_axes()
    seen = _finite(points)
    sigma = [p.sigma for p in seen]
    ax.plot(
        sigma, [p.ece or 0.0 for p in seen], color=COLOURS["bad"], marker="o", markersize=3, label="ECE, as a fraction"
    )
    ax.plot(sigma, [p.brier or 0.0 for p in seen], color=COLOURS["second"], marker="o", markersize=3, label="Brier")
    ax.locator_params(axis="x", nbins=5)  # four decimals each: more labels touch
    ax.set_xlabel("σ of the perturbation")
    ax.set_ylabel("error of the ensemble")
    legend(ax)
    return ax


def _finite(points: Sequence[SigmaPoint]) -> list[SigmaPoint]:
    return sorted((p for p in points if np.isfinite(p.log_likelihood)), key=lambda p: p.sigma)
