"""PEP Fig. 3: the more a network is overfitted, the more a perturbation of its weights gains.

overfitting = NLL on test − NLL on train,   PEP effect = NLL of the network − NLL of PEP, both on test, at each epoch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant.report.plots.style import COLOURS, SERIES, legend, new_axes, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from calibrant.diagnostics.overfitting import Epoch


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's ρ: does one grow with the other? None where one of them never changes."""
    from scipy.stats import spearmanr

    if min(len(set(a)), len(set(b))) < 2:
        return None
    return float(spearmanr(a, b).statistic)


def overfitting_curves(runs: Sequence[Sequence[Epoch]], *, ax: Axes | None = None) -> Axes:
    """Fig. 3 (a): NLL on test along training, of the network and of PEP at that epoch's σ*; one thin line per seed."""
    ax = ax or new_axes()
    for name, colour, value in (
        ("network", "bad", "test_nll"),
        ("PEP", "accent", "pep_nll"),
        ("network, on its training set", "muted", "train_nll"),
    ):
        for run in runs:
            ax.plot(
                [e.epoch for e in run],
                [getattr(e, value) for e in run],
                color=COLOURS[colour],
                linewidth=0.7,
                alpha=0.45,
            )
        epochs = sorted({e.epoch for run in runs for e in run})
        mean = [np.mean([getattr(e, value) for run in runs for e in run if e.epoch == at]) for at in epochs]
        ax.plot(epochs, mean, color=COLOURS[colour], linewidth=1.6, label=shown(name))
    ax.set_xlabel("epoch")
    ax.set_ylabel("NLL")
    legend(ax)
    return ax


def overfitting_scatter(rows: Mapping[str, Sequence[Epoch]], *, of: str = "effect", ax: Axes | None = None) -> Axes:
    """Fig. 3 (b–d): one point per epoch, overfitting against the PEP effect (`of="sigma"`: against σ*)."""
    ax = ax or new_axes()
    for i, (name, epochs) in enumerate(rows.items()):
        x = [e.overfitting for e in epochs]
        y = [float(getattr(e, of)) for e in epochs]
        rho = rank_correlation(x, y)
        label = name if rho is None else f"{name}, ρ = {rho:.2f}"
        ax.plot(x, y, "o", color=COLOURS[SERIES[i % len(SERIES)]], markersize=3.5, alpha=0.8, label=shown(label))
    ax.axhline(0, color=COLOURS["muted"], linewidth=0.8, dashes=(4, 3))
    ax.set_xlabel("overfitting: NLL on test − NLL on train")
    ax.set_ylabel("σ*" if of == "sigma" else "PEP effect: NLL gained on test")
    legend(ax)
    return ax
