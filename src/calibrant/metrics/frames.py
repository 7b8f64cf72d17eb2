"""Metrics over the pixels of a video, one frame of labels after the other; intervals resample whole frames.

    frames = Frames();  for each frame: frames.add(logits[H, W, K], labels[H, W]);  frames.report()

A frame is reduced to the same few sums whatever its size, so a video is never in memory. Values are those of `evaluate`
on all pixels (AUROC is binned, see `auroc_bound`), and two of segmentation: the mean intersection over union, and the
consistency of neighbouring frames (SS Eq. 37, Table 2). Errors in a frame are correlated, and so are neighbouring
frames. So intervals draw whole frames, or blocks of them, and are widened for the correlation that blocks miss
(`block_length`).
"""

from __future__ import annotations

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
from calibrant.metrics.bca import UNMOVED, acceleration, normal_quantile, slope, variance_inflation
from calibrant.metrics.block_length import block_length, student_widening, widening
from calibrant.metrics.bootstrap import counts
from calibrant.metrics.calibration import ECE
from calibrant.metrics.calibration_cells import Cells, cells_from_sums, group_factor
from calibrant.metrics.calibration_intervals import invert
from calibrant.metrics.conventions import BINS, Resampling, conventions
from calibrant.metrics.evaluate import point_estimates
from calibrant.metrics.intervals import INVERSION
from calibrant.metrics.panel import Metric, Panel, UnitPanel
from calibrant.metrics.proper import Column
from calibrant.metrics.refinement import Runs
from calibrant.metrics.stream import MEANS
from calibrant.types import Estimate, Report

RUNGS_A_CELL = 64
CELLS = stream.RUNGS // RUNGS_A_CELL
"""Cells of confidence that the pixels of a frame are counted in, for AUROC: rungs of the stream's ladder, merged."""
FEW = 30
"""With fewer units, intervals use Student's t."""


@dataclass(frozen=True)
class FrameSums:
    """Sums over the pixels of one frame. With a first axis U, the sums of U frames or blocks."""

    size: Tensor  # labelled pixels
    columns: Tensor  # [MEANS]: Σ of each
    width: Tensor  # [4, bins]: count, Σ confidence, Σ correct, Σ confidence²
    ladder: Tensor  # [2, CELLS]: right and wrong pixels, most confident first
    overlap: Tensor  # [3, K]: right, predicted and labelled pixels of each class
    steady: Tensor  # [2]: pixels with the same prediction as in the previous frame, pixels compared
    impossible: Tensor  # labels with probability 0

    def sums(self, column: Column) -> Tensor:
        return self.columns[:, list(MEANS.values()).index(column)]

    def drawn_runs(self, counts: Tensor) -> Runs:
        return Runs(counts @ self.ladder[:, 0], counts @ self.ladder[:, 1])


def frame_sums(scores: Scores, predicted: Tensor, previous: Tensor | None, k: int) -> FrameSums:
    """The sums of a frame. `scores` hold its labelled pixels, `predicted` and `previous` all pixels."""
    found = stream.sums(scores)
    cell = CELLS - 1 - stream.rung(scores.log_error) // RUNGS_A_CELL
    right, labels = scores.predicted == scores.labels, scores.labels
    each = (torch.bincount(t, minlength=k).double() for t in (labels[right], scores.predicted, labels))
    same = [0.0, 0.0] if previous is None else [float((predicted == previous).sum()), float(predicted.numel())]
    return FrameSums(
        size=torch.tensor(float(scores.n), dtype=torch.float64),
        columns=found.moments[:, 0],
        width=found.width,
        ladder=torch.stack([torch.bincount(cell[which], minlength=CELLS).double() for which in (right, ~right)]),
        overlap=torch.stack(list(each)),
        steady=torch.tensor(same, dtype=torch.float64),
        impossible=torch.tensor(float(found.impossible), dtype=torch.float64),
    )


class Frames:
    """Collects frames one by one; `report` may be called at any time."""

    def __init__(self, bins: int = BINS) -> None:
        self.bins, self.k = bins, 0
        self.rows: list[FrameSums] = []
        self._previous: Tensor | None = None

    def add(self, logits: Tensor, labels: Tensor, *, ignore: int = -1, cut: bool = False) -> None:
        """Add one frame of logits [H, W, K]. Pixels labelled `ignore` count only for consistency. `cut` starts a new
        scene, which is not compared with the frame before."""
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
            scores = reduce(predictions(flat[known], y[known]), self.bins, classwise=False)
        except InputError as error:
            raise InputError(f"frame {len(self.rows)}, of its labelled pixels: {error}") from None
        self.rows.append(frame_sums(scores, predicted, previous, logits.shape[-1]))
        self.k, self._previous = logits.shape[-1], predicted  # last, so that a refused frame changes nothing

    def units(self, block: int = 1) -> FrameSums:
        """The sums of each `block` successive frames, one row per block."""
        columns = (torch.stack([getattr(row, field.name) for row in self.rows]) for field in fields(FrameSums))
        return FrameSums(*(blocked(column, block) for column in columns))

    def series(self) -> Tensor:
        """What each frame adds to NLL, accuracy and the mean gap, [3, F], for the block length."""
        units = self.units()
        of_frames = [units.sums(MEANS[name]) for name in ("nll", "accuracy", "gap")]
        return torch.stack([x - units.size * (x.sum() / units.size.sum()) for x in of_frames])

    def report(self, *, resampling: Resampling | None = None, block: int | Literal["auto"] = 1) -> Report:
        """Every metric; with `resampling`, also its interval over frames or over blocks of `block` successive frames.

        With `block="auto"` the length comes from the frames' autocorrelation (`block_length`).
        """
        if not self.rows:
            raise InputError("no frame was added; there is nothing to report")
        if block == "auto":
            block = block_length(self.series())
        if not isinstance(block, int) or block < 1:
            raise InputError(f"block={block!r} must be at least 1 frame, or 'auto'")
        units = self.units(block)
        count = len(units.size)
        panel = FramePanel(units, torch.ones(1, count, dtype=torch.float64))
        out = point_estimates(MEASURES, panel)
        unit = "frames" if block == 1 else f"blocks of {block} frames"
        if resampling is not None:
            widened_by = widening(self.series(), block)
            out = {m.name: interval(m, out[m.name], panel, resampling, unit, widened_by) for m in MEASURES}
        said = None if resampling is None else resampling.describe(unit)
        extras: dict[str, Any] = {"frames": len(self.rows), "units": count, "auroc_bound": auroc_bound(units)}
        percent = frozenset(m.name for m in MEASURES if m.percent)
        return Report(out, panel.n, self.k, conventions(bins=self.bins, interval=said), extras=extras, percent=percent)


class FramePanel(UnitPanel):
    """The sums that metrics use when frame or block u is drawn counts[B, u] times."""

    units: FrameSums
    about = "top label"

    def __init__(self, units: FrameSums, counts: Tensor) -> None:
        super().__init__(units, counts)
        self.n, self.k = int(units.size.sum()), units.overlap.shape[-1]

    @property
    def right(self) -> int:
        return int(self.units.ladder[:, 0].sum())

    @property
    def impossible(self) -> str | None:
        labels = int(self.units.impossible.sum())
        return f"{labels} labels were called impossible" if labels else None

    @cached_property
    def width(self) -> BinSums:
        return BinSums(*(self.counts @ self.units.width[:, i] for i in range(3)))

    def value(self, metric: Metric, counts: Tensor) -> Tensor:
        """The metric when the units are drawn counts[B, U] times."""
        return metric(FramePanel(self.units, counts))


def _miou(panel: Panel) -> Tensor:
    assert isinstance(panel, FramePanel)
    both, predicted, labelled = (panel.counts @ panel.units.overlap[:, i] for i in range(3))
    union = predicted + labelled - both
    seen = union > 0
    return (both / torch.where(seen, union, 1.0)).sum(-1) / seen.sum(-1)


def _consistency(panel: Panel) -> Tensor:
    assert isinstance(panel, FramePanel)
    return panel.counts @ panel.units.steady[:, 0] / (panel.counts @ panel.units.steady[:, 1])


def _needs_neighbours(panel: Panel) -> str | None:
    assert isinstance(panel, FramePanel)
    return None if bool(panel.units.steady[:, 1].any()) else "one frame has no neighbour to agree with"


MEASURES: tuple[Metric, ...] = (
    *(METRICS[name] for name in ("accuracy", "nll", "brier", "ece", "auroc")),
    Metric("miou", "mean intersection over union", "proper", "high", _miou),
    Metric("consistency", "consistency of neighbouring frames", "proper", "high", _consistency, _needs_neighbours),
)


def auroc_bound(units: FrameSums) -> float:
    """How far AUROC can be from the exact value: a pair in one cell counts ½, and could count 0 or 1."""
    right, wrong = units.ladder.sum(0)
    pairs = float(right.sum() * wrong.sum())
    return float((right * wrong).sum()) / (2 * pairs) if pairs else 0.0


def blocked(values: Tensor, block: int) -> Tensor:
    """The sums of each `block` successive rows."""
    groups = torch.arange(len(values)) // block
    out = torch.zeros(int(groups[-1]) + 1, *values.shape[1:], dtype=torch.float64)
    return out.index_add_(0, groups, values)


def interval(
    metric: Metric, e: Estimate, panel: FramePanel, resampling: Resampling, unit: str, widened_by: float
) -> Estimate:
    """The estimate with its interval over the units, widened by a factor for the correlation between them."""
    units, value, name = panel.units, partial(panel.value, metric), metric.name
    count = len(units.size)
    if e.value is None or count < 2:
        return e if e.value is None else Estimate(e.value, reason=f"one of the {unit}: no interval")
    if name != "ece" and count < FEW:
        return _student(metric, e, slope(value, count), resampling.level, unit, widened_by)
    if name == "accuracy":
        n = _effective_pixels(units, e.value) / widened_by**2
        low, high = map(float, wilson(e.value * n, n, resampling.level))
        return Estimate(e.value, low, high, method=f"Wilson, pixels counted by the design effect of {unit}")
    if name == "ece":
        few = count < FEW
        cells = _cells(units, widened_by * (student_widening(count, resampling.level) if few else 1.0))
        low, high = invert(cells, [ECE], resampling)[ECE]
        if few:
            lowest, highest = _along_largest_motion(cells, resampling.level)
            low, high = min(low, lowest), max(high, highest)
        said = f"{INVERSION}, widened for {count} {unit}" if few else INVERSION
        return Estimate(e.value, low, high, method=said)
    drawn = torch.cat([value(w) for w in counts(count, count, resampling.replicates, resampling.seed)])
    if int(torch.isfinite(drawn).sum()) < 0.9 * resampling.replicates:
        return Estimate(e.value, reason=f"too few {unit} for an interval")
    accelerated = acceleration(slope(value, count), None)
    found = bca.interval(e, e.value, drawn, accelerated, resampling.level, f"BCa bootstrap over {unit}")
    if found.low is None or found.high is None:
        return found
    low, high = max(0.0, e.value - widened_by * (e.value - found.low)), e.value + widened_by * (found.high - e.value)
    return replace(found, low=low, high=min(high, 1.0) if metric.percent else high)


def _student(metric: Metric, e: Estimate, influence: Tensor, level: float, unit: str, widened_by: float) -> Estimate:
    """Student's t on the standard error of the units' influences, because a bootstrap of a few units is too short."""
    from scipy.stats import t

    assert e.value is not None
    count = len(influence)
    error = float(influence.square().sum() * count / (count - 1)) ** 0.5
    if error == 0:
        return Estimate(e.value, reason=UNMOVED)
    half = float(t.ppf((1 + level) / 2, count - 1)) * error * widened_by
    top = 1.0 if metric.percent else float("inf")
    ends = (max(0.0, e.value - half), min(top, e.value + half))
    return Estimate(e.value, *ends, method=f"Student's t on the influences of {count} {unit}")


def _effective_pixels(units: FrameSums, share: float) -> float:
    """The number of pixels, divided by how much drawing whole units inflates the variance of a share of them."""
    total = float(units.size.sum())
    inflation = variance_inflation(units.sums(MEANS["accuracy"]), units.size, total * share * (1 - share))
    return total / max(1.0, inflation)


def _along_largest_motion(cells: Cells, level: float) -> tuple[float, float]:
    """The range of Σ|gap| while all gaps move along the direction in which the units vary most.

    The test inversion scales the observed gaps. In a few easy frames these may be small and cancel, although elsewhere
    in the video all gaps are large and of one sign. Then an upper end along the observed gaps alone is too low.
    """
    assert cells.factor is not None
    most = cells.factor[:, cells.factor.square().sum(0).argmax()]
    steps = normal_quantile((1 + level) / 2) * torch.linspace(-1, 1, 201, dtype=torch.float64)
    gaps = cells.mass * cells.gap
    moved = (gaps - steps[:, None] * most).abs().sum(1)
    return float(moved.min()), min(1.0, float(moved.max()))


def _cells(units: FrameSums, widened: float) -> Cells:
    signed = units.width[:, 1] - units.width[:, 2]
    sums = units.width.sum(0)
    factor = group_factor(signed[:, sums[0] > 0], units.size) * widened
    return replace(cells_from_sums(*sums), factor=factor, groups=len(units.size))
