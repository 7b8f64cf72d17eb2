"""Histogram binning (RC §2; Zadrozny 2001): each confidence becomes the accuracy that was seen in its bin.

Bins have equal width (`histogram`: (b−1)/B < p ≤ b/B) or equal mass (`histogram_mass`: equal counts, ties in one bin).
`kind="top"` bins the confidence of the predicted class (RC §4: "on the top-1 prediction"). `kind="one_vs_rest"` bins
the probability of each class against 1[y = k] and normalises the rows; this may change the label.

A bin without calibration items leaves the confidence as it is. Logits, unlike the explicit confidence, never express a
rate of exactly 0 or 1: in logits, such a bin with n items has the rate (hits + ½)/(n + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from calibrant.functional.binning import edges as width_edges
from calibrant.functional.binning import equal_width, mass_bins, settled
from calibrant.functional.probabilities import FLOOR
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.one_vs_rest import Kind, kind_of, probabilities_and_hits
from calibrant.posthoc.step_functions import Floats, in_step, place
from calibrant.posthoc.toplabel import Top, TopLabelMap
from calibrant.types import Predictions


def tabulate(p: Floats, hit: NDArray[np.bool_], bins: int, scheme: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inner edges [B − 1] of right-closed bins, and the items and hits in each bin [B]."""
    if scheme == "width":
        index, edges = equal_width(torch.from_numpy(p), bins), width_edges(bins)[1:-1]
    else:
        index, edges = mass_bins(torch.from_numpy(settled(p)[0]), bins)
        bins = len(edges) + 1
    count = torch.bincount(index, minlength=bins).double()
    return edges, count, torch.bincount(index, torch.from_numpy(hit).double(), minlength=bins)


def rate(hits: Tensor, count: Tensor) -> Tensor:
    """The accuracy of each bin, as in the paper."""
    return hits / count.clamp_min(1)


def soft_rate(hits: Tensor, count: Tensor) -> Tensor:
    """The accuracy of each bin, with half a hit and half a miss more in bins of only hits or only misses."""
    sure = (hits == 0) | (hits == count)
    return torch.where(sure, (hits + 0.5) / (count + 1), rate(hits, count))


def binned(
    p: Tensor, edges: Tensor, values: Tensor, count: Tensor, scheme: str, offset: Tensor | None = None
) -> Tensor:
    """The value of the bin that each p falls into; a bin without items leaves p as it is.

    Equal-width bins are exactly those of ECE, and place values near an edge in the same way.
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
    """The probability of each class → the rate of its bin. The softmax of the logits normalises the rows."""

    edges: Tensor  # [K, B − 1]; columns that lost equal-mass bins to ties are padded with edges at 2
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
        self.need(p.n, self.bins, f"one for each of {self.bins} bins; ask for fewer with bins=")
        record = certified({"items": p.n, "bins": self.bins, "scheme": self.scheme, "kind": self.kind})
        columns = probabilities_and_hits(p, kind_of(self.kind, p, self.name))
        tables = [tabulate(value, hit, self.bins, self.scheme) for value, hit in columns]
        if self.kind == "top":
            made = HistogramMassMap if self.scheme == "mass" else HistogramMap
            return made(*tables[0], record=record)
        edges, count, hits = (
            pad_sequence(list(part), batch_first=True, padding_value=fill)
            for part, fill in zip(zip(*tables, strict=True), (2.0, 0.0, 0.0), strict=True)
        )
        return HistogramRestMap(edges, count, hits, self.scheme, record=record)


@dataclass(frozen=True)
class HistogramMass(Histogram):
    """Histogram binning with bins of equal mass."""

    name: ClassVar[str] = "histogram_mass"
    map: ClassVar[type[FittedMap]] = HistogramMassMap
    scheme: ClassVar[str] = "mass"
