"""Which items a map was fitted on, in a few numbers: enough to know them again in another order or precision.

An item is known by its label, its three likeliest classes and how far apart their logits are, to a hundred-thousandth:
float32 and float64, logits and log-probabilities are then one. A sketch is the smallest hashes of a set (bottom-k,
Broder 1997), a fair sample of its items; how many of them are found among other items is the share that came back.

Equal answers are not equal items: a predictor that has few (a forest's votes, rounded scores) has no sketch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from calibrant.functional.classwise import DEVICE_CHUNK
from calibrant.functional.fingerprint import scrambled
from calibrant.functional.pooling import pool
from calibrant.types import Predictions

SIZE = 256
FEWEST = 32  # items below which a share says nothing
DISTINCT = 0.9  # share of items that must be unlike all others
STEP = 1e-5  # of the gaps between logits
FARTHEST = 1e9  # an impossible class
SAME = 0.9
"""Share of the sketch from which on two sets of one size are the same items: a gap at the edge of a step may be rounded
the other way in another precision."""
WORTH_SAYING = 0.02
BITS = (1 << 52) - 1  # what every reader of JSON holds exactly
BLOCK = 1 << 18  # scores that are hashed at a time: they stay in the cache, and no second copy is made of all
SLOW = range(16, 192)  # classes


def sketch(p: Predictions) -> tuple[int, ...]:
    """The smallest hashes of the items, in order; empty where items cannot be told apart."""
    found = _hashes(p)
    if found is None or len(found) < FEWEST:
        return ()
    ordered = found.sort().values
    apart = torch.ones(len(found) + 1, dtype=torch.bool)
    apart[1:-1] = ordered[1:] != ordered[:-1]
    alone = apart[:-1] & apart[1:]  # unlike both neighbours
    if int(alone.sum()) < DISTINCT * len(found):
        return ()
    return tuple(ordered[alone][:SIZE].tolist())


def share(kept: Sequence[int], p: Predictions) -> float:
    """The share of the sketched items that are among these."""
    found = _hashes(p) if kept else None
    if found is None:
        return 0.0
    small = found[found <= max(kept)]  # a sketch holds the smallest: next to nothing is left to look among
    return float(torch.isin(torch.tensor(list(kept)), small).double().mean())


def _hashes(p: Predictions) -> Tensor | None:
    if p.logits is None or p.k is None or p.k < 2:
        return None
    rows = max(1, (BLOCK if p.logits.device.type == "cpu" else DEVICE_CHUNK) // p.k)
    parts = zip(torch.split(p.logits.detach(), rows, -2), torch.split(p.labels, rows), strict=True)
    return torch.cat([_mixed(pool(z) if z.ndim == 3 else z, labels) for z, labels in parts])


def _mixed(logits: Tensor, labels: Tensor) -> Tensor:
    top, classes = (found.cpu() for found in _likeliest(logits, min(3, logits.shape[-1])))
    top = top.double()  # of three columns alone: which classes are likeliest, float32 knows too
    gaps = (top[:, :1] - top[:, 1:]).nan_to_num(FARTHEST, FARTHEST, FARTHEST).clamp_max(FARTHEST)
    mixed = labels.cpu().long()
    for each in classes.unbind(1):
        mixed = mixed * logits.shape[-1] + each  # one number of all classes: scrambling is what costs
    for gap in (gaps / STEP).round().long().unbind(1):
        mixed = scrambled(mixed) + gap
    return scrambled(mixed) & BITS


def _likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`topk`, which takes twice as long as repeated maxima for these numbers of classes."""
    if logits.shape[-1] not in SLOW:
        values, indices = logits.topk(count, dim=-1)
        return values, indices
    left, found = logits.clone(), []
    for _ in range(count):
        found.append(left.max(-1, keepdim=True))
        left.scatter_(1, found[-1].indices, -torch.inf)
    return torch.cat([f.values for f in found], 1), torch.cat([f.indices for f in found], 1)
