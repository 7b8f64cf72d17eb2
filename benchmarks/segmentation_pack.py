"""What leaves `segmentation_runs`: what spatial smoothing does to each row, on the same frames; all cells, one file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.smoothing_pack import packed
from calibrant.bench.store import Store
from calibrant.files import atomic
from calibrant.metrics.blocks import missed
from calibrant.metrics.frames import Frames, blocked
from calibrant.papers import Experiment, experiments

BLOCK = 15
"""Successive frames that an interval draws together: a second at 15 Hz."""
Done = tuple[Experiment, int, str, Path, str]
"""A network's row, seed, scale, run folder, and its cell's key."""


def difference(a: Tensor, b: Tensor) -> dict[str, Any]:
    """NLL of b − NLL of a from sums a frame [F, 3], on the same frames: Student's t over blocks of them.

    A video has seven blocks, of which a bootstrap's percentiles are too short; and what blocks miss of the correlation
    of neighbouring frames widens it (`blocks.missed`), as in `Frames.report`.
    """
    from scipy.stats import t

    pixels = float(a[:, 0].sum())
    value = float((b[:, 2] - a[:, 2]).sum()) / pixels
    moved = (b[:, 2] - a[:, 2] - value * a[:, 0]) / pixels  # what each frame adds, beyond its share
    units = blocked(moved, BLOCK)
    count = len(units)
    low: float | None = None
    high: float | None = None  # of one block nobody knows
    if count > 1:
        error = float(units.square().sum() * count / (count - 1)) ** 0.5 * missed(moved, BLOCK)
        half = float(t.ppf(0.975, count - 1)) * error
        low, high = value - half, value + half
    return {
        "nll": value,
        "low": low,
        "high": high,
        "interval": f"Student's t over {count} blocks of {BLOCK} frames, paired",
    }


def kept(found: Mapping[str, Frames], folder: Path) -> None:
    """The sums of each frame, for differences to other networks."""
    arrays: dict[str, Any] = {v: f.units(1)["pixels"].numpy() for v, f in found.items()}
    (folder / "measured.json").unlink(missing_ok=True)  # an earlier one is of the sums that go now
    with atomic.file(folder / "frames.npz") as to:
        np.savez(to, **arrays)


def pack(done: Sequence[Done], a: argparse.Namespace) -> None:
    a.out.mkdir(parents=True, exist_ok=True)
    store = Store(a.cells)
    sums: dict[tuple[str, int, str], dict[str, Tensor]] = {}
    for e, seed, scale, folder, _ in done:
        with np.load(folder / "frames.npz", allow_pickle=False) as arrays:
            sums[e.row, seed, scale] = {v: torch.from_numpy(arrays[v]) for v in arrays.files}
    for e, seed, scale, _, key in done:
        cell = next(store.read(store.path(key)))
        plain = sums.get((e.row.removesuffix("_smooth"), seed, scale))
        if e.row.endswith("_smooth") and plain is not None:
            each = {v: difference(plain[v], f) for v, f in sums[e.row, seed, scale].items()}
            cell = replace(cell, extras={**cell.extras, "spatial_against_none": each})
            store.write(cell)
        if "dropout" in cell.measured:  # Table 2 is the Bayesian half of E.4
            [twin] = experiments(f"ss/table2/{e.row}")
            store.write(replace(cell, experiment=twin.name))
    packed(store, a.out)
