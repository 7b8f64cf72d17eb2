"""The gaps of two predictors on the same items, and the noise that they share.

Both predictors tend to miss the same items, so their hits in cell c of one and cell d of the other are correlated. The
correlation is estimated by the Gram matrix of confidence − correct (s for one, t for the other),

    r_cd = Σ_{i in c and d} s_i t_i / √(Σ_{i in c} s_i² · Σ_{i in d} t_i²),

which is a correlation matrix by construction; for a predictor and itself r is 1. The shares of items that fall into
cells are correlated in the same way, with s = t = 1. With groups, sums over groups take the place of items.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.functional.binning import group_sums
from calibrant.metrics.calibration import GapError, Kind, Side
from calibrant.metrics.calibration_cells import Cells, Noise, cells, group_influence, observed_gaps
from calibrant.metrics.calibration_intervals import Line, line
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.panel import Panel

Two = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class PairedCells:
    """The cells of both predictors, the bin of each cell, and correlated random numbers for both."""

    cells: tuple[Cells, Cells]
    place: Two
    noise: tuple[Noise, Noise]


class PairedNoise:
    """The cells and lines of two panels, computed once for all errors that use them."""

    def __init__(self, panels: tuple[Panel, Panel], resampling: Resampling) -> None:
        self.panels, self.resampling = panels, resampling
        self._cells: dict[Kind, PairedCells] = {}
        self._lines: dict[tuple[Kind, Side], tuple[Line, Line]] = {}

    def cells(self, kind: Kind) -> PairedCells:
        if kind not in self._cells:
            self._cells[kind] = paired_cells(self.panels, kind, self.resampling)
        return self._cells[kind]

    def lines(self, error: GapError) -> tuple[Line, Line]:
        """Each predictor's line of populations; its own upper end's line serves both ends of a difference."""
        key = (error.cells, error.side)
        if key not in self._lines:
            both = self.cells(error.cells)
            a, b = (line(c, error.side, "high", n) for c, n in zip(both.cells, both.noise, strict=True))
            self._lines[key] = (a, b)
        return self._lines[key]


def second_goes_first(panels: tuple[Panel, Panel]) -> bool:
    """Whether the noise of the second panel is drawn first, because its sums are smaller. So b against a mirrors
    a against b."""
    for power in (1, 2, 3):
        a, b = (
            float((p.scores.confidence.pow(power) * (1 + p.scores.correct.double())).mean().double()) for p in panels
        )
        if abs(a - b) > 1e-9:
            return b < a
    return False


def paired_cells(panels: tuple[Panel, Panel], kind: Kind, resampling: Resampling) -> PairedCells:
    held = [torch.unique(p.index(kind), return_inverse=True) for p in panels]
    s, group = [p.scores for p in panels], panels[0].scores.group
    a, b = (
        cells(which, x.confidence, x.correct, group, smooth=kind == "walk")
        for (_, which), x in zip(held, s, strict=True)
    )
    signed = [x.confidence - x.correct.double() for x in s]
    which = (held[0][1], held[1][1])
    generator = torch.Generator().manual_seed(resampling.seed)

    def normal(size: int) -> Tensor:
        return torch.randn(resampling.replicates, size, dtype=torch.float64, generator=generator)

    hits, share = normal(len(a.count)), normal(len(a.count))
    ones = torch.ones_like(signed[0])
    r_share = gram(which, (ones, ones)) if group is None else _between(which, (signed[0], signed[1]), (a, b), group)
    hits_b = coupled(hits, gram(which, (signed[0], signed[1])), normal(len(b.count)))
    share_b = coupled(share, r_share, normal(len(b.count)))
    return PairedCells((a, b), (held[0][0], held[1][0]), (_noise(hits, share), _noise(hits_b, share_b)))


def _noise(hits: Tensor, share: Tensor) -> Noise:
    return Noise(torch.special.ndtr(hits).clamp(1e-12, 1 - 1e-12), share)


def gram(which: Two, x: Two) -> Tensor:
    """Correlations [C, D] of the sums of x over the cells of each side."""
    sizes = [int(w.max()) + 1 for w in which]
    cross = torch.bincount(which[0] * sizes[1] + which[1], x[0] * x[1], minlength=sizes[0] * sizes[1]).view(*sizes)
    norms = [torch.bincount(w, v.square(), minlength=k).sqrt() for w, v, k in zip(which, x, sizes, strict=True)]
    return cross / (norms[0][:, None] * norms[1]).clamp_min(1e-300)


def _between(which: Two, signed: Two, both: tuple[Cells, Cells], group: Tensor) -> Tensor:
    """The correlations L⁺ Cov (M⁺)ᵀ between the directions of the two factors, from the groups' sums."""
    groups = int(group.max()) + 1
    items = torch.bincount(group, minlength=groups).double()
    a, b = (
        group_influence(group_sums(group, groups, w, len(c.count), v), items)
        for w, v, c in zip(which, signed, both, strict=True)
    )
    covariance = a.T @ b * (groups / (groups - 1))
    left, right = (torch.linalg.pinv(c.factor, rtol=1e-6) for c in both if c.factor is not None)
    out: Tensor = left @ covariance @ right.T
    return out


def coupled(x: Tensor, r: Tensor, fresh: Tensor) -> Tensor:
    """Standard normals [S, D] whose correlation with x [S, C] is r: x r, plus independent noise from `fresh`."""
    rest = torch.eye(r.shape[1], dtype=torch.float64) - r.T @ r
    values, vectors = torch.linalg.eigh(rest)
    # tiny eigenvalues are rounding: a predictor compared with itself has no noise of its own
    left = torch.where(values > 1e-12, values, 0.0).sqrt()
    out: Tensor = x @ r + fresh @ (vectors * left).T
    return out


def reach(both: PairedCells, error: GapError, z: float) -> tuple[float, float]:
    """How far b's error can be (below, above) a's: | ‖v‖ − ‖u‖ | ≤ ‖v − u‖, plus z standard errors.

    Predictors that nearly agree have nearly the same gaps, whatever these are.
    """
    size = 1 + int(max(p.max() for p in both.place))
    seen, drawn = [], []
    for c, place, noise in zip(both.cells, both.place, both.noise, strict=True):
        gaps = torch.cat([(c.mass * c.gap)[None], observed_gaps(c, c.gap[None], noise)[0]])
        v = error.vector(gaps, c)
        if error.cells == "walk":  # the shorter walk is continued at its last value
            full = torch.cat([v, v[:, -1:].expand(-1, size - v.shape[1])], 1)
        else:
            full = torch.zeros(len(v), size, dtype=torch.float64)
            full[:, place] = v
        seen.append(full[:1])
        drawn.append(full[1:])
    at, around = error.norm.reach(seen[1] - seen[0]), error.norm.reach(drawn[1] - drawn[0])
    spread = [float(d.std()) for d in around]
    down, up = (
        float(x) + z * (e if e > 1e-12 else 0.0) for x, e in zip(at, spread, strict=True)
    )  # rounding is no noise
    return down, up
