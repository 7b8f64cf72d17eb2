"""Disjoint stratified parts of one training set, from one seed.

Each part gets every class in proportion to what is left (largest remainder, so sizes are exact); within a class, items
are drawn by a permutation from the seed. Official parts keep their items; other parts are cut from the training part.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from calibrant.data.records import Part, Size
from calibrant.errors import InputError
from calibrant.types import Split

CUT_ORDER = (Split.TEST, Split.CALIBRATION, Split.VALIDATION)


def stratify(y: Tensor, sizes: Mapping[Split, int], seed: int) -> dict[Split, Tensor]:
    """Indices (sorted) of disjoint parts of these sizes; the remaining items are in no part."""
    if sum(sizes.values()) > y.numel():
        asked = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise InputError(f"parts of {asked} do not fit into {y.numel()} items; ask for fewer")
    rng = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(y.numel(), generator=rng)
    by_class = [shuffled[y[shuffled] == label] for label in torch.bincount(y).nonzero().flatten()]
    left = torch.tensor([members.numel() for members in by_class])
    taken = torch.zeros_like(left)
    out = {}
    for name, size in sizes.items():
        counts = apportion(left, size)
        chosen = [m[t : t + c] for m, t, c in zip(by_class, taken.tolist(), counts.tolist(), strict=True)]
        out[name] = torch.cat(chosen).sort().values
        taken, left = taken + counts, left - counts
    return out


def apportion(left: Tensor, size: int) -> Tensor:
    """Items of each class in a part of `size`: proportional to `left`, exact in total, never more than are left."""
    quota = left.double() * size / max(int(left.sum()), 1)
    counts = quota.floor().long()
    remainder = (quota - counts).sort(descending=True, stable=True).indices
    counts[remainder[: size - int(counts.sum())]] += 1
    return counts


def split_parts(official: Mapping[Split, Part], sizes: Mapping[str, Size], seed: int) -> dict[Split, Part]:
    """The official parts, limited to the wanted sizes; missing parts are cut from the training part."""
    wanted = {Split(name): size for name, size in sizes.items()}
    out: dict[Split, Part] = {}
    if Split.TRAIN in official:
        pool = official[Split.TRAIN]
        counts = {s: _count(wanted.get(s, 0), pool.n, s) for s in CUT_ORDER if s not in official}
        rest = max(0, pool.n - sum(counts.values()))
        counts[Split.TRAIN] = min(rest, _count(wanted.get(Split.TRAIN, rest), pool.n, Split.TRAIN))
        for name, chosen in stratify(_strata(pool), counts, seed).items():
            if chosen.numel():
                out[name] = pool.take(chosen, name)
    for name, part in official.items():
        if name is Split.TRAIN:
            continue
        size = _count(wanted.get(name, part.n), part.n, name)
        if size and size < part.n:
            part = part.take(stratify(_strata(part), {name: size}, seed)[name], name)
        if size:
            out[name] = part
    return {name: out[name] for name in Split if name in out}


def _strata(part: Part) -> Tensor:
    """The class of each item; items with maps of labels are one stratum."""
    return part.y if part.y.ndim == 1 else torch.zeros(part.n, dtype=torch.long)


def _count(size: Size, n: int, name: Split) -> int:
    """A fraction in [0, 1] of the n items, or a number of items."""
    if size < 0 or (isinstance(size, float) and size > 1 and size != int(size)):
        raise InputError(f"size of the {name} part must be a number of items or a fraction in [0, 1], got {size}")
    return round(size * n) if isinstance(size, float) and size <= 1 else int(size)
