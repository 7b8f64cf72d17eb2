"""PEP's figures: along σ (PEP Fig. 1), and its gain against overfitting along a training (PEP Fig. 3).

The band of the σ curve is ± 2 standard errors of the paired gain over the network itself. Where the band lies above the
dashed line, the gain is not due to the choice of held-out items alone.

overfitting = NLL on test − NLL on train,   PEP effect = NLL of the network − NLL of PEP, both on test, at each epoch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant.report.plots.style import COLOURS, DASHED, SERIES, legend, line, new_axes, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from calibrant.diagnostics.overfitting import Epoch
    from calibrant.ensembles.sigma import SigmaPoint


def sigma_likelihood(points: Sequence[SigmaPoint], *, ax: Axes | None = None) -> Axes:
    """Draw L(σ): the ensemble with its band, each member as a thin line, the model itself (σ = 0) dashed."""
    ax = ax or new_axes()
    seen = _finite(points)
    sigma = np.array([p.sigma for p in seen])
    mean = np.array([p.log_likelihood for p in seen])
    error = np.nan_to_num(np.array([p.standard_error if p.gain_error is None else p.gain_error for p in seen]))
    members = max((len(p.members) for p in seen), default=0)
    for j in range(members):
        alone = [p for p in seen if len(p.members) == members or p.sigma == 0]
        own = [p.members[j] if len(p.members) == members else p.members[0] for p in alone]
        ax.plot([p.sigma for p in alone], own, color=COLOURS["muted"], linewidth=0.6, alpha=0.6)
    ends = {"low": mean - 2 * error, "high": mean + 2 * error}
    line(ax, sigma, mean, "accent", "ensemble, L(σ)", **ends, marker="o", markersize=3)
    best = int(mean.argmax())
    ax.plot(sigma[best], mean[best], "o", color=COLOURS["good"], markersize=6, label=f"σ* = {sigma[best]:.3g}")
    ax.axhline(mean[0], **DASHED)
    # members fall off a cliff beyond σ*; what matters is near the ensemble's own curve
    low, high = float((mean - 2 * error).max() - 3 * np.ptp(mean[: best + 1]) - 0.05), float((mean + 2 * error).max())
    ax.set_ylim(max(low, float(mean.min()) - 0.05), high + 0.05 * (high - low))
    ax.locator_params(axis="x", nbins=5)  # four decimals each: more labels touch
    ax.set_xlabel("σ of the perturbation")
    ax.set_ylabel("mean log-likelihood")
    legend(ax)
    return ax


def sigma_errors(points: Sequence[SigmaPoint], *, ax: Axes | None = None) -> Axes:
    """Draw ECE and Brier of the ensemble along σ."""
    ax = ax or new_axes()
    seen = _finite(points)
    sigma = [p.sigma for p in seen]
    line(ax, sigma, [p.ece or 0.0 for p in seen], "bad", "ECE, as a fraction", marker="o", markersize=3)
    line(ax, sigma, [p.brier or 0.0 for p in seen], "second", "Brier", marker="o", markersize=3)
    ax.locator_params(axis="x", nbins=5)  # four decimals each: more labels touch
    ax.set_xlabel("σ of the perturbation")
    ax.set_ylabel("error of the ensemble")
    legend(ax)
    return ax


def _finite(points: Sequence[SigmaPoint]) -> list[SigmaPoint]:
    return sorted((p for p in points if np.isfinite(p.log_likelihood)), key=lambda p: p.sigma)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return Spearman's ρ, or None where one of the two never changes."""
    from scipy.stats import spearmanr

    if min(len(set(a)), len(set(b))) < 2:
        return None
    return float(spearmanr(a, b).statistic)


def overfitting_curves(runs: Sequence[Sequence[Epoch]], *, ax: Axes | None = None) -> Axes:
    """Draw PEP Fig. 3 (a): the NLL of the network and of PEP with each epoch's σ*; one thin line per seed."""
    ax = ax or new_axes()
    for name, colour, value in (
        ("network", "bad", "test_nll"),
        ("PEP", "accent", "pep_nll"),
        ("network, on its training set", "muted", "train_nll"),
    ):
        for run in runs:
            line(ax, [e.epoch for e in run], [getattr(e, value) for e in run], colour, linewidth=0.7, alpha=0.45)
        epochs = sorted({e.epoch for run in runs for e in run})
        mean = [np.mean([getattr(e, value) for run in runs for e in run if e.epoch == at]) for at in epochs]
        line(ax, epochs, mean, colour, name)
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("epoch")
    ax.set_ylabel("NLL")
    legend(ax)
    return ax


def overfitting_scatter(rows: Mapping[str, Sequence[Epoch]], *, ax: Axes | None = None) -> Axes:
    """Draw PEP Fig. 3 (b): one point per epoch, overfitting against PEP's effect."""
    ax = ax or new_axes()
    for i, (name, epochs) in enumerate(rows.items()):
        x = [e.overfitting for e in epochs]
        y = [e.effect for e in epochs]
        rho = rank_correlation(x, y)
        label = name if rho is None else f"{name}, ρ = {rho:.2f}".replace("-", "\N{MINUS SIGN}")
        ax.plot(x, y, "o", color=COLOURS[SERIES[i % len(SERIES)]], markersize=3.5, alpha=0.8, label=shown(label))
    ax.axhline(0, **DASHED)
    ax.set_xlabel("overfitting: NLL on test − NLL on train")
    ax.set_ylabel("PEP effect: NLL gained on test")
    legend(ax)
    return ax
