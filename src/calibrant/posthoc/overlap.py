"""The overlap of two sets of items: a map keeps a few numbers that recognise the items it was fitted on.

The hash of an item comes from its label, its three likeliest classes and the differences of their logits, rounded to
1e-5. So float32 and float64, or logits and log-probabilities, give the same hash. A sketch holds the smallest hashes of
a set (bottom-k, Broder 1997), which are a fair sample of its items. The share of them that is found in another set
estimates how much of the first set is in the second.

Different items can have equal scores. So a predictor with few distinct scores, such as the votes of a forest, has no
sketch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from calibrant.functional.chunks import DEVICE_CHUNK
from calibrant.functional.fingerprint import scrambled
from calibrant.functional.pooling import pool
from calibrant.types import Predictions

SIZE = 256
FEWEST = 32  # with fewer items, a share means nothing
DISTINCT = 0.9  # share of the items that must differ from all others
STEP = 1e-5  # gaps between logits are rounded to multiples of this
FARTHEST = 1e9  # the gap to an impossible class
SAME = 0.9
"""Two sets of equal size with at least this share in common hold the same items. It is below 1 because rounding can
differ between precisions."""
WORTH_SAYING = 0.02
BITS = (1 << 52) - 1  # every JSON reader can hold these integers exactly
BLOCK = 1 << 18  # logits hashed at a time: they fit into the cache


def sketch(p: Predictions) -> tuple[int, ...]:
    """The smallest hashes of the items, in order; empty if the items cannot be told apart."""
    found = _hashes(p)
    if found is None or len(found) < FEWEST:
        return ()
    values, counts = torch.unique(found, return_counts=True)
    single = values[counts == 1]
    return () if len(single) < DISTINCT * len(found) else tuple(single[:SIZE].tolist())


def share(kept: Sequence[int], p: Predictions) -> float:
    """The share of the sketched items that are among these."""
    found = _hashes(p) if kept else None
    if found is None:
        return 0.0
    small = found[found <= max(kept)]  # only small hashes can be in a sketch
    return float(torch.isin(torch.tensor(list(kept)), small).double().mean())


def _hashes(p: Predictions) -> Tensor | None:
    if p.logits is None or p.k is None or p.k < 2:
        return None
    rows = max(1, (BLOCK if p.logits.device.type == "cpu" else DEVICE_CHUNK) // p.k)
    parts = zip(torch.split(p.logits.detach(), rows, -2), torch.split(p.labels, rows), strict=True)
    return torch.cat([_mixed(pool(z) if z.ndim == 3 else z, labels) for z, labels in parts])


def _mixed(logits: Tensor, labels: Tensor) -> Tensor:
    top, classes = (found.cpu() for found in logits.topk(min(3, logits.shape[-1]), -1))
    top = top.double()  # only three columns need it: float32 finds the same likeliest classes
    gaps = (top[:, :1] - top[:, 1:]).nan_to_num(FARTHEST, FARTHEST, FARTHEST).clamp_max(FARTHEST)
    mixed = labels.cpu().long()
    for each in classes.unbind(1):
        mixed = mixed * logits.shape[-1] + each  # all classes in one number, because scrambling is slow
    for gap in (gaps / STEP).round().long().unbind(1):
        mixed = scrambled(mixed) + gap
    return scrambled(mixed) & BITS
