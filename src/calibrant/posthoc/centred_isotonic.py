"""Centred isotonic regression (Oron and Flournoy 2017): isotonic regression without its flat steps.

PAVA's blocks say that neighbours with different scores are equally likely to be right, which loses refinement. Here
a block becomes one point, its mean score with its value, and the function is linear between the points: strictly
increasing inside, so ranking within a block is kept. Beyond the first and the last point it runs on to the ends of
the data at the block's value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.functional.binning import settled
from calibrant.posthoc.calibrator import at_least, certified
from calibrant.posthoc.isotonic import Isotonic, IsotonicMap, IsotonicRestMap, Steps
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.toplabel import top_of
from calibrant.types import Predictions


def centred(steps: Steps, values: NDArray[np.float64]) -> Steps:
    """One knot per block, at the mean of the `values` in it."""
    first, last = steps.x[::2], steps.x[1::2]
    ordered = settled(values)[1]
    low = np.searchsorted(ordered, first, "left")
    high = np.searchsorted(ordered, last, "right")
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    centre = np.clip((total[high] - total[low]) / (high - low), first, last)
    return Steps(centre, steps.y[::2].copy(), steps.soft[::2].copy())


@dataclass(frozen=True)
class CentredIsotonic(Isotonic):
    """Isotonic regression without its flat steps (Oron and Flournoy 2017).

    `kind` as for isotonic.
    """

    name: ClassVar[str] = "isotonic_centred"

    def solve(self, p: Predictions) -> FittedMap:
        at_least(p, 2, "one point has no slope", self.name)
        plain = super().solve(p)
        if isinstance(plain, IsotonicMap):
            steps = Steps(plain.x.numpy(), plain.y.numpy(), plain.soft_y.numpy())
            made = centred(steps, top_of(p).confidence.cpu().numpy())
            record = certified({"kind": "top", "points": len(made.x)})
            return IsotonicMap(*(torch.from_numpy(v) for v in (made.x, made.y, made.soft)), record=record)
        assert isinstance(plain, IsotonicRestMap) and p.logits is not None
        # the very numbers that the blocks were cut from: another rounding could fall outside of its block
        z = p.logits.double()
        prob = torch.exp(z - torch.logsumexp(z, -1, keepdim=True)).T.contiguous().numpy()
        parts = []
        for c, (i, j) in enumerate(zip(plain.offset[:-1].tolist(), plain.offset[1:].tolist(), strict=True)):
            y = plain.y[i:j].numpy()
            parts.append(centred(Steps(plain.x[i:j].numpy(), y, y), prob[c]))
        return IsotonicRestMap(
            torch.from_numpy(np.concatenate([s.x for s in parts])),
            torch.from_numpy(np.concatenate([s.soft for s in parts])),
            torch.tensor(np.cumsum([0, *(len(s.x) for s in parts)])),
            record=certified({"kind": "one_vs_rest", "points": sum(len(s.x) for s in parts)}),
        )
