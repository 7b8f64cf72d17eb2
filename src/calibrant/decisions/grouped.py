"""Thresholds for items that come in groups (the pixels of an image, the frames of a sequence).

Items of one group depend on each other, and only groups are independent draws. So promises and tests are about groups.
The loss of a group at a threshold is the mean loss of its accepted items. At a fixed threshold, the losses of the
groups in which something is accepted are independent draws in [0, 1], and the p-value of Hoeffding–Bentkus is valid for
"their mean is above the risk".

* `--accuracy` and `--risk`: the candidate thresholds are the same for all data, so each test is exact. The fallback
  procedure (`threshold.py`) tests them from the safest to the boldest (learn then test, Angelopoulos 2021). It assumes
  nothing about the shape of the errors.
* `--accept`: the threshold is a quantile of all confidences, and the bound treats it as given. No label is used, but
  the threshold depends on the same groups, so this bound is approximate, and the sentence of the rule says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.threshold import Chosen, Ordered, hoeffding_bentkus_p, least_risk, passes
from calibrant.functional.binomial import Floats

DOUBT = np.geomspace(1e-6, 1, 121)
"""1 − threshold of each candidate, twenty per power of ten."""
THRESHOLDS = (1 - DOUBT).round(9)
STARTS = (1e-2, 1e-1, 1e-3, 1.0)
"""The values of 1 − threshold where δ enters. With too few groups for all, only the first ones are used."""


@dataclass(frozen=True)
class Grouped:
    """The items of one class, or all items: confidence, loss in 0…1, and group (numbered from 0) of each."""

    confidence: Floats
    loss: Floats
    group: NDArray[np.int64]

    @cached_property
    def units(self) -> int:
        return len(np.unique(self.group))

    @cached_property
    def tested(self) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """The table at all candidates, which does not depend on the risk."""
        return self.table(THRESHOLDS)

    def table(self, thresholds: Floats) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """For falling thresholds: the total loss of groups, how many groups accept something, and accepted items."""
        if not len(self.confidence):
            nothing = np.zeros(len(thresholds), np.int64)
            return nothing.astype(float), nothing, nothing
        first = np.searchsorted(-thresholds, -self.confidence)  # the safest threshold that accepts the item
        shape = (int(self.group.max()) + 1, len(thresholds) + 1)
        cell = self.group * shape[1] + first
        accepted, paid = (
            np.bincount(cell, weights, minlength=shape[0] * shape[1]).reshape(shape).cumsum(1)[:, :-1]
            for weights in (None, self.loss)
        )
        mean = np.divide(paid, accepted, out=np.zeros_like(paid, dtype=float), where=accepted > 0)
        return mean.sum(0), (accepted > 0).sum(0), accepted.sum(0)

    def choose(self, risk: float, delta: float) -> Chosen:
        """The boldest threshold that passes its test."""
        most = max((j for j in range(1, len(STARTS) + 1) if (1 - risk) ** self.units <= delta / j), default=0)
        if most == 0:
            return Chosen()
        share = np.zeros(len(DOUBT))
        for start in STARTS[:most]:
            share[np.abs(np.log(DOUBT / start)).argmin()] = 1 / most
        total, count, accepted = self.tested
        good = np.flatnonzero(passes(hoeffding_bentkus_p(total, count, risk), share, delta) & (accepted > 0))
        if not len(good):
            return Chosen()
        i = good[-1]
        return Chosen(float(THRESHOLDS[i]), int(count[i]), float(total[i]), int(accepted[i]))

    def bound(self, chosen: Chosen, delta: float) -> float:
        """The upper bound of the mean loss of groups."""
        total, count = np.array([chosen.total]), np.array([chosen.count])
        return least_risk(lambda risk: float(hoeffding_bentkus_p(total, count, risk)[0]) <= delta)

    def surest(self, share: float) -> Chosen:
        found = Ordered.of(self.confidence, self.loss).surest(share)
        return self.at(found.threshold) if found.count else found

    def at(self, t: float) -> Chosen:
        total, count, accepted = self.table(np.array([t]))
        return Chosen(t, int(count[0]), float(total[0]), int(accepted[0]))
