"""Histogram binning (RC §2; Zadrozny 2001): the confidence of a bin is the accuracy seen in it.

Bins are of equal size (`histogram`: (b−1)/B < p ≤ b/B) or of equal mass (`histogram_mass`: equal counts, ties
together). `kind="top"` bins the confidence of the predicted class (RC §4: "on the top-1 prediction");
`kind="one_vs_rest"` bins each class's probability against 1[y = k], then normalises the rows, and may change the label.

A bin without calibration items leaves the confidence as it is. Logits, unlike the explicit confidence, never express a
rate of exactly 0 or 1: for them, the rate of a bin with n items is then (hits + ½)/(n + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.functional.binning import edges as width_edges
from calibrant.functional.binning import equal_width, mass_bins, settled
from calibrant.functional.probabilities import FLOOR
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.one_vs_rest import Kind, every_class_of
from calibrant.posthoc.step_functions import in_step, place
from calibrant.posthoc.toplabel import Top, TopLabelMap, top_of
from calibrant.types import Predictions


@dataclass(frozen=True)
class Table:
    """Bins of one column: inner edges (right-closed), items and hits in each bin."""

    edges: Tensor  # [B − 1]
    count: Tensor  # [B]
    hits: Tensor  # [B]


def tabulate(p: Tensor, hit: Tensor, bins: int, scheme: str) -> Table:
    if scheme == "width":
        index, edges = equal_width(p, bins), width_edges(bins)[1:-1]
    else:
        index, edges = mass_bins(torch.from_numpy(settled(p.numpy())[0]), bins)
        bins = len(edges) + 1
    count = torch.bincount(index, minlength=bins).double()
    return Table(edges, count, torch.bincount(index, hit.double(), minlength=bins))


def rate(hits: Tensor, count: Tensor) -> Tensor:
    """Accuracy of each bin, as in the paper."""
    return hits / count.clamp_min(1)


def soft_rate(hits: Tensor, count: Tensor) -> Tensor:
    """The same, plus half a hit and half a miss in bins that hold only hits or only misses."""
    sure = (hits == 0) | (hits == count)
    return torch.where(sure, (hits + 0.5) / (count + 1), rate(hits, count))


def binned(
    p: Tensor, edges: Tensor, values: Tensor, count: Tensor, scheme: str, offset: Tensor | None = None
) -> Tensor:
    """The value of the bin of each p; a bin without items leaves p as it is.

    Equal-width bins are exactly those of ECE, including how values near an edge are placed.
    """
    if scheme == "width":
        columns = 1 if offset is None else len(offset) - 1
        index = equal_width(p, len(count) // columns)
    else:
        index = place(p, edges, offset)
    return torch.where(in_step(count, index, offset) > 0, in_step(values, index, offset), p)


@dataclass(frozen=True, eq=False)
class HistogramMap(TopLabelMap):
    """Confidence → accuracy of its bin."""

    edges: Tensor
    count: Tensor
    hits: Tensor
    method: ClassVar[str] = "histogram"
    scheme: ClassVar[str] = "width"

    @property
    def degrees(self) -> int:
        return int((self.count > 0).sum())

    def confidence(self, top: Top) -> Tensor:
        return binned(top.confidence, self.edges, rate(self.hits, self.count), self.count, self.scheme)

    def soft(self, top: Top) -> Tensor:
        soft = binned(top.confidence, self.edges, soft_rate(self.hits, self.count), self.count, self.scheme)
        return soft.clamp(self.floor, 1 - self.floor)

    def summary(self) -> dict[str, Any]:
        return {
            "edges": self.edges.tolist(),
            "accuracy": rate(self.hits, self.count).tolist(),
            "count": self.count.tolist(),
        }


@dataclass(frozen=True, eq=False)
class HistogramMassMap(HistogramMap):
    method: ClassVar[str] = "histogram_mass"
    scheme: ClassVar[str] = "mass"


@dataclass(frozen=True, eq=False)
class HistogramRestMap(FittedMap):
    """Each class's probability → rate of its bin; the softmax of the logits normalises the rows."""

    edges: Tensor  # [K, B − 1]; equal-mass tables that lost bins to ties are padded with edges at 2
    count: Tensor  # [K, B]
    hits: Tensor
    scheme: str
    method: ClassVar[str] = "histogram_rest"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int:
        return len(self.count)

    @property
    def degrees(self) -> int:
        return int((self.count > 0).sum())

    def transform(self, logits: Tensor) -> Tensor:
        offset = self.edges.shape[1] * torch.arange(self.k + 1, device=logits.device)
        values, p = soft_rate(self.hits, self.count), torch.softmax(logits, -1)
        q = binned(p, self.edges.flatten(), values.flatten(), self.count.flatten(), self.scheme, offset)
        return still_impossible(torch.log(q.clamp_min(FLOOR)), logits)  # an empty bin may hold p = 0


@dataclass(frozen=True)
class Histogram(Calibrator):
    """Histogram binning with bins of equal width (Zadrozny 2001)."""

    bins: int = 15
    kind: Kind = "top"
    name: ClassVar[str] = "histogram"
    map: ClassVar[type[FittedMap]] = HistogramMap
    maps: ClassVar[tuple[type[FittedMap], ...]] = (HistogramRestMap,)
    scheme: ClassVar[str] = "width"
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = 0
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"kind": "one_vs_rest"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.bins >= 1, "bins", "must be at least 1")

    def solve(self, p: Predictions) -> FittedMap:
        self.need(p, self.bins, f"one for each of {self.bins} bins; ask for fewer with bins=")
        record = certified({"items": p.n, "bins": self.bins, "scheme": self.scheme, "kind": self.kind})
        if self.kind == "top":
            top = top_of(p)
            table = tabulate(top.confidence.cpu(), top.predicted.cpu() == p.labels.cpu(), self.bins, self.scheme)
            made = HistogramMassMap if self.scheme == "mass" else HistogramMap
            return made(table.edges, table.count, table.hits, record=record)
        logits = every_class_of(p, self.name)
        prob, y = torch.softmax(logits.double(), -1).cpu(), p.labels.cpu()
        tables = [tabulate(prob[:, c].contiguous(), y == c, self.bins, self.scheme) for c in range(prob.shape[1])]
        widest = max(len(t.count) for t in tables)
        return HistogramRestMap(
            torch.stack([pad(t.edges, widest - 1, 2.0) for t in tables]),
            torch.stack([pad(t.count, widest, 0.0) for t in tables]),
            torch.stack([pad(t.hits, widest, 0.0) for t in tables]),
            self.scheme,
            record=record,
        )


@dataclass(frozen=True)
class HistogramMass(Histogram):
    """Histogram binning with bins of equal mass."""

    name: ClassVar[str] = "histogram_mass"
    map: ClassVar[type[FittedMap]] = HistogramMassMap
    scheme: ClassVar[str] = "mass"


def pad(values: Tensor, size: int, fill: float) -> Tensor:
    return torch.nn.functional.pad(values, (0, size - len(values)), value=fill)
