"""Images of labels, one after the other: sums a frame, which add up to every metric over pixels; frames are resampled.

    frames = Frames();  for each frame: frames.add(logits[H, W, K], labels[H, W]);  frames.report()

A frame leaves the same few numbers, whatever its size, so a video never lies in memory. Values are those of `evaluate`
on all pixels (AUROC from a ladder of confidences: see `auroc_bound`), with two of segmentation's own: the mean
intersection over union, and the consistency of neighbouring frames (SS Eq. 37, Table 2). Pixels of a frame err together
and so do frames of a video: intervals draw whole frames, or blocks of them, by the methods of `intervals`, and are
widened by what blocks miss of the frames' correlation (`blocks`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.binning import BinSums
from calibrant.functional.binomial import wilson
from calibrant.functional.inputs import predictions
from calibrant.functional.scores import Scores, reduce
from calibrant.metrics import METRICS, bca, stream
from calibrant.metrics.bca import UNMOVED, acceleration, normal_quantile, slope
from calibrant.metrics.blocks import block_length, few_blocks, missed
from calibrant.metrics.bootstrap import draw
from calibrant.metrics.calibration import ECE
from calibrant.metrics.calibration_cells import Cells, from_sums, group_factor
from calibrant.metrics.calibration_intervals import invert
from calibrant.metrics.conventions import BINS, Resampling, conventions
from calibrant.metrics.intervals import INVERSION
from calibrant.metrics.proper import Column
from calibrant.metrics.refinement import Runs
from calibrant.metrics.stream import MEANS
from calibrant.metrics.table import Metric
from calibrant.metrics.units import UnitPanel
from calibrant.types import Estimate, Report

RUNGS_A_CELL = 64
CELLS = stream.RUNGS // RUNGS_A_CELL
"""Cells of the ladder of confidences that a frame is counted on, for AUROC."""
FEW = 30
"""Units below which an interval is Student's."""
TABLED = ("accuracy", "nll", "brier", "ece", "auroc")
"""Those that are of the table of metrics."""
UNBOUNDED = frozenset({"nll", "brier"})
PERCENT = frozenset({"accuracy", "ece", "miou", "consistency"})


@dataclass(frozen=True)
class Sums:
    """Of one frame; stacked, of several units [U, …]. `same` of `compared` pixels have the previous frame's label."""

    size: Tensor  # labelled pixels
    columns: Tensor  # [MEANS]: Σ of each
    width: Tensor  # [4, bins]: count, Σ confidence, Σ correct, Σ confidence²
    ladder: Tensor  # [2, CELLS]: right, wrong; the most confident first
    overlap: Tensor  # [3, K]: right, predicted, labelled, of each class
    steady: Tensor  # [2]: same, compared

    def sums(self, column: Column) -> Tensor:
        return self.columns[:, list(MEANS.values()).index(column)]

    def drawn_runs(self, counts: Tensor) -> Runs:
        return Runs(counts @ self.ladder[:, 0], counts @ self.ladder[:, 1])


def sums(scores: Scores, predicted: Tensor, previous: Tensor | None, k: int) -> Sums:
    """Of the labelled pixels of a frame; `predicted` and `previous` are of all its pixels."""
    found = stream.sums(scores)
    cell = CELLS - 1 - stream.rung(scores.log_error) // RUNGS_A_CELL
    right, labels = scores.predicted == scores.labels, scores.labels
    each = (torch.bincount(t, minlength=k).double() for t in (labels[right], scores.predicted, labels))
    same = [0.0, 0.0] if previous is None else [float((predicted == previous).sum()), float(predicted.numel())]
    return Sums(
        size=torch.tensor(float(scores.n), dtype=torch.float64),
        columns=found.moments[:, 0],
        width=found.width,
        ladder=torch.stack([torch.bincount(cell[which], minlength=CELLS).double() for which in (right, ~right)]),
        overlap=torch.stack(list(each)),
        steady=torch.tensor(same, dtype=torch.float64),
    )


Value = Callable[[Tensor], Tensor]
"""Weights of the units [B, U] → values [B]."""


class Frames:
    """Frames as they come; `report` at any time."""

    def __init__(self, bins: int = BINS) -> None:
        self.bins, self.k = bins, 0
        self.rows: list[Sums] = []
        self._previous: Tensor | None = None

    def add(self, logits: Tensor, labels: Tensor, *, ignore: int = -1, cut: bool = False) -> None:
        """One frame, logits [H, W, K]; pixels labelled `ignore` count for consistency alone. `cut`: a new scene."""
        if logits.ndim < 2 or logits.shape[:-1] != labels.shape:
            raise InputError(
                f"a frame of logits {tuple(logits.shape)} and labels {tuple(labels.shape)}: [H, W, K], [H, W]"
            )
        if self.k not in (0, logits.shape[-1]):
            raise InputError(f"a frame of {logits.shape[-1]} classes after frames of {self.k}")
        predicted = logits.argmax(-1).cpu()
        previous = None if cut or self._previous is None or self._previous.shape != predicted.shape else self._previous
        flat, y = logits.reshape(-1, logits.shape[-1]).cpu(), labels.reshape(-1).cpu()
        known = y != ignore
        if not bool(known.any()):
            raise InputError(f"frame {len(self.rows)} has no labelled pixel (all are {ignore})")
        try:
            scores = reduce(predictions(flat[known], y[known]), self.bins)
        except InputError as error:
            raise InputError(f"frame {len(self.rows)}, of its labelled pixels: {error}") from None
        self.rows.append(sums(scores, predicted, previous, logits.shape[-1]))
        self.k, self._previous = logits.shape[-1], predicted  # of frames that were taken

    def units(self, block: int = 1) -> Sums:
        """The sums of each `block` successive frames, one row per block."""
        return Sums(*(blocked(torch.stack([getattr(r, f.name) for r in self.rows]), block) for f in fields(Sums)))

    def series(self) -> Tensor:
        """What each frame adds to NLL, accuracy and the mean gap [3, F]: their correlation tells which err alike."""
        units = self.units()
        of_frames = [units.sums(MEANS[name]) for name in ("nll", "accuracy", "gap")]
        return torch.stack([x - units.size * (x.sum() / units.size.sum()) for x in of_frames])

    def report(self, *, resampling: Resampling | None = None, block: int | Literal["auto"] = 1) -> Report:
        """Every metric; with `resampling`, its interval over frames or over blocks of so many successive ones.

        `block="auto"`: as long as the frames' autocorrelation asks for (`blocks.block_length`).
        """
        if not self.rows:
            raise InputError("no frame was added; there is nothing to report")
        if block == "auto":
            block = block_length(self.series())
        if not isinstance(block, int) or block < 1:
            raise InputError(f"block={block!r} must be at least 1 frame, or 'auto'")
        units = self.units(block)
        count = len(units.size)
        ones = torch.ones(1, count, dtype=torch.float64)
        values = metrics(units)
        out = {name: _point(name, float(value(ones)), units) for name, value in values.items()}
        unit = "frames" if block == 1 else f"blocks of {block} frames"
        if resampling is not None:
            more = missed(self.series(), block)
            out = {n: interval(n, e, values[n], units, resampling, unit, more) for n, e in out.items()}
        said = None if resampling is None else resampling.describe(unit)
        n = int(units.size.sum())
        extras: dict[str, Any] = {"frames": len(self.rows), "units": count, "auroc_bound": auroc_bound(units)}
        return Report(out, n, self.k, conventions(bins=self.bins, interval=said), extras=extras, percent=PERCENT)


class FramePanel(UnitPanel):
    """What metrics share when unit u is drawn counts[B, u] times."""

    units: Sums

    @cached_property
    def width(self) -> BinSums:
        return BinSums(*(self.counts @ self.units.width[:, i] for i in range(3)))


def metrics(units: Sums) -> dict[str, Value]:
    """Each metric as a function of the units' weights: those of the table, and two of segmentation's own."""
    out: dict[str, Value] = {name: partial(_weighed, METRICS[name], units) for name in TABLED}
    return out | {"miou": partial(_miou, units), "consistency": partial(_consistency, units)}


def _weighed(metric: Metric, units: Sums, w: Tensor) -> Tensor:
    return metric(FramePanel(units, w))


def _miou(units: Sums, w: Tensor) -> Tensor:
    both, predicted, labelled = (w @ units.overlap[:, i] for i in range(3))
    union = predicted + labelled - both
    seen = union > 0
    return (both / torch.where(seen, union, 1.0)).sum(-1) / seen.sum(-1)


def _consistency(units: Sums, w: Tensor) -> Tensor:
    return w @ units.steady[:, 0] / (w @ units.steady[:, 1])


def auroc_bound(units: Sums) -> float:
    """How far AUROC can be from the exact one: pairs on one cell count ½, and could count 0 or 1."""
    right, wrong = units.ladder.sum(0)
    pairs = float(right.sum() * wrong.sum())
    return float((right * wrong).sum()) / (2 * pairs) if pairs else 0.0


def blocked(values: Tensor, block: int) -> Tensor:
    """Sums of each `block` successive frames."""
    groups = torch.arange(len(values)) // block
    out = torch.zeros(int(groups[-1]) + 1, *values.shape[1:], dtype=torch.float64)
    return out.index_add_(0, groups, values)


def _point(name: str, value: float, units: Sums) -> Estimate:
    if name == "consistency" and not bool(units.steady[:, 1].any()):
        return Estimate(None, reason="one frame has no neighbour to agree with")
    if name == "auroc" and not bool(units.ladder.sum((0, 2)).all()):
        return Estimate(None, reason="no wrong pixel, or no right one")
    return Estimate(value)


def interval(
    name: str, e: Estimate, value: Value, units: Sums, resampling: Resampling, unit: str, more: float = 1.0
) -> Estimate:
    """The estimate with its interval over the units; `more`: what their correlation widens it by (`blocks.missed`)."""
    count = len(units.size)
    if e.value is None or count < 2:
        return e if e.value is None else Estimate(e.value, reason=f"one of the {unit}: no interval")
    if name != "ece" and count < FEW:
        return _student(name, e, value, count, resampling.level, unit, more)
    if name == "accuracy":
        n = _effective(units, e.value) / more**2
        low, high = map(float, wilson(e.value * n, n, resampling.level))
        return Estimate(e.value, low, high, method=f"Wilson, pixels counted by the design effect of {unit}")
    if name == "ece":
        few = count < FEW
        cells = _cells(units, more * (few_blocks(count, resampling.level) if few else 1.0))
        low, high = invert(cells, [ECE], resampling)[ECE]
        if few:
            lowest, highest = _together(cells, resampling.level)
            low, high = min(low, lowest), max(high, highest)
        said = f"{INVERSION}, widened for {count} {unit}" if few else INVERSION
        return Estimate(e.value, low, high, method=said)
    drawn = value(draw(count, resampling.replicates, torch.Generator().manual_seed(resampling.seed)))
    if int(torch.isfinite(drawn).sum()) < 0.9 * resampling.replicates:
        return Estimate(e.value, reason=f"too few {unit} for an interval")
    accelerated = acceleration(slope(value, count), None)
    found = bca.interval(e, e.value, drawn, accelerated, resampling.level, f"BCa bootstrap over {unit}")
    if found.low is None or found.high is None:
        return found
    low, high = max(0.0, e.value - more * (e.value - found.low)), e.value + more * (found.high - e.value)
    return replace(found, low=low, high=high if name in UNBOUNDED else min(high, 1.0))


def _student(name: str, e: Estimate, value: Value, count: int, level: float, unit: str, more: float) -> Estimate:
    """Of a handful of units a bootstrap's interval is too short: their influences' standard error, and Student's t."""
    from scipy.stats import t

    assert e.value is not None
    error = float(slope(value, count).square().sum() * count / (count - 1)) ** 0.5
    if error == 0:
        return Estimate(e.value, reason=UNMOVED)
    half = float(t.ppf((1 + level) / 2, count - 1)) * error * more
    top = float("inf") if name in UNBOUNDED else 1.0
    ends = (max(0.0, e.value - half), min(top, e.value + half))
    return Estimate(e.value, *ends, method=f"Student's t on the influences of {count} {unit}")


def _effective(units: Sums, share: float) -> float:
    """Pixels, divided by how much whole units inflate the variance of a share of them."""
    n, hits = units.size, units.sums(MEANS["accuracy"])
    total, items = float(n.sum()), float(n.sum()) * share * (1 - share)
    if items == 0:
        return float(len(n))
    return total / max(1.0, float((hits - share * n).square().sum()) / items)


def _together(cells: Cells, level: float) -> tuple[float, float]:
    """The range of Σ|gap| while all gaps move along the direction in which the units move them most.

    The inversion scales the gaps that are seen. Of a stretch of easy frames these are small and cancel, though every
    gap may be large, and of one sign, elsewhere in the video: an upper end along them alone is too low.
    """
    assert cells.factor is not None
    most = cells.factor[:, cells.factor.square().sum(0).argmax()]
    steps = normal_quantile((1 + level) / 2) * torch.linspace(-1, 1, 201, dtype=torch.float64)
    gaps = cells.mass * cells.gap
    moved = (gaps - steps[:, None] * most).abs().sum(1)
    return float(moved.min()), min(1.0, float(moved.max()))


def _cells(units: Sums, widened: float) -> Cells:
    signed = units.width[:, 1] - units.width[:, 2]
    sums = units.width.sum(0)
    factor = group_factor(signed[:, sums[0] > 0], units.size) * widened
    return replace(from_sums(*sums), factor=factor)
