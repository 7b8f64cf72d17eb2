"""The loss on a plane, as contours and as a surface (SS Fig. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.report.plots.style import COLOURS, dress, new_axes, scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
LEVELS = 14
PATH = ("accent", "second", "bad")  # colours from low to high loss


def levels_of(losses: Sequence[Floats]) -> Floats:
    """Return levels for several landscapes, evenly spaced in the logarithm, up to the 90% quantile of the losses."""
    every = np.concatenate([loss.reshape(-1) for loss in losses])
    finite = every[np.isfinite(every)]
    low, high = max(float(finite.min()), 1e-6), float(np.quantile(finite, 0.9))
    return np.geomspace(low, high if high > low else 2 * low, LEVELS)


def contour(a: Floats, b: Floats, loss: Floats, levels: Floats, marks: Sequence[tuple[float, float]]) -> Axes:
    """Draw lines of equal loss; the red dot is the network, other dots are other checkpoints."""
    ax = new_axes(4.6, 3.8)
    drawn = ax.contour(a, b, _bounded(loss, levels), levels=levels, cmap=scale(*PATH), linewidths=1.1)
    ax.clabel(drawn, levels[::3], fmt=lambda value: f"{value:.3g}", fontsize=7)
    for i, (x, y) in enumerate(marks):
        ax.plot(x, y, "o", color=COLOURS["bad" if i == 0 else "ink"], markersize=5)
    ax.set_xlabel("first direction")
    ax.set_ylabel("second direction")
    ax.set_aspect("equal")
    ax.locator_params(nbins=5)  # more labels would touch
    return ax


def surface(a: Floats, b: Floats, loss: Floats, levels: Floats) -> Axes:
    """Draw the loss as a surface, cut off at the highest level."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.8), layout="constrained")
    ax: Any = figure.add_subplot(projection="3d")
    dress(ax)
    across, up = np.meshgrid(a, b)
    ax.plot_surface(across, up, _bounded(loss, levels), cmap=scale(*PATH), linewidth=0.2, rcount=40, ccount=40)
    ax.set_zlim(0, float(levels[-1]))
    ax.set_xlabel("first direction")
    ax.set_ylabel("second direction")
    ax.set_zlabel("loss", color=COLOURS["muted"])
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.pane.set_alpha(0)
        axis.get_major_locator().set_params(nbins=4)
    return ax  # type: ignore[no-any-return]


def _bounded(loss: Floats, levels: Floats) -> Floats:
    bounded: Floats = np.minimum(np.where(np.isfinite(loss), loss, np.inf), levels[-1])
    return bounded
