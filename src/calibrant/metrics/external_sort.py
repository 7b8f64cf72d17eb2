"""`--exact`: exact ranking metrics of a stream by an external sort, in bounded memory.

While the stream is read, each batch is written to a folder as a run sorted by log(1 − confidence). Afterwards the
ladder's counts cut the range into pieces that fit in memory. Each piece is gathered from all runs and sorted, and its
ties are folded into running sums, most confident first. Equal keys are on the same rung, and so in the same piece. A
single value that occurs more often than fits into a piece is one run of ties and needs no sort.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calibrant.files.paths import visible
from calibrant.functional import ranking
from calibrant.functional.scores import Scores
from calibrant.metrics.stream import RUNGS, StreamState, rung

if TYPE_CHECKING:
    from calibrant.metrics.stream_parquet import Task

PIECE = 1 << 19
"""Items that are sorted in memory at a time."""

ROW = np.dtype([("log_error", "<f8"), ("confidence", "<f8"), ("correct", "u1")])
Array = np.ndarray[Any, Any]


def spill(folder: Path, task: Task, start: int, scores: Scores) -> None:
    """Write the scores of a batch to disk as a sorted run."""
    rows = np.empty(scores.n, ROW)
    order = np.argsort(scores.log_error.numpy(), kind="stable")
    for name in ("log_error", "confidence", "correct"):
        rows[name] = getattr(scores, name).numpy()[order]
    name = hashlib.sha256(f"{task.part}\n{start}".encode()).hexdigest()[:24]
    np.save(folder / f"run-{name}.npy", rows, allow_pickle=False)


@dataclass(frozen=True)
class Slice:
    """Rows [a, b) of a sorted run. They are loaded on demand and not kept, so that only one piece is in memory."""

    path: Path
    a: int
    b: int

    def rows(self) -> Array:
        mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return np.array(mapped[self.a : self.b])

    def keys(self) -> Array:
        return self.rows()["log_error"].copy()  # `ascontiguousarray` would keep the record's stride of a single row

    def cut(self, *at: int) -> list[Slice]:
        edges = [0, *at, self.b - self.a]
        return [Slice(self.path, self.a + x, self.a + y) for x, y in pairwise(edges)]


def exact(folder: Path, state: StreamState) -> dict[str, float]:
    """The exact values of the metrics that a ladder can only bound."""
    fold = Fold(state)
    for part in partition(visible(folder, "run-*.npy"), state):
        for piece in pieces(part):
            fold.add(piece)
    return fold.values()


def partition(runs: list[Path], state: StreamState) -> list[list[Slice]]:
    """For each piece of about PIECE items, its slices of all runs; most confident first. Rungs are never split."""
    size = (state.ladder[0] + state.ladder[1]).flip(0)  # most confident first
    before = torch.cumsum(size, 0) - size
    piece_of = torch.unique_consecutive((before / PIECE).floor().long(), return_inverse=True)[1]
    count = int(piece_of[-1]) + 1
    parts: list[list[Slice]] = [[] for _ in range(count)]
    for path in runs:
        whole = Slice(path, 0, len(np.load(path, mmap_mode="r", allow_pickle=False)))
        piece = piece_of[RUNGS - 1 - rung(torch.from_numpy(whole.keys()))]
        cuts = torch.searchsorted(piece, torch.arange(1, count)).tolist()
        for part, found in zip(parts, whole.cut(*cuts), strict=True):
            if found.b > found.a:
                part.append(found)
    return parts


def pieces(part: list[Slice]) -> Iterator[Array]:
    """The rows of these slices, in sorted pieces of at most PIECE items, most confident (smallest key) first."""
    total = sum(s.b - s.a for s in part)
    if total == 0:
        return
    if total <= 2 * PIECE:
        joined = np.concatenate([s.rows() for s in part])
        yield joined[np.argsort(joined["log_error"], kind="stable")]
        return
    samples = np.sort(np.concatenate([_sampled(s) for s in part]))
    if samples[0] == samples[-1]:  # both ends of every slice are sampled, so this is one run of ties
        for each in part:
            yield each.rows()
        return
    middle = float(samples[len(samples) // 2])
    if middle == samples[-1]:
        middle = float(np.nextafter(middle, -math.inf))
    halves = [s.cut(int(np.searchsorted(s.keys(), middle, "right"))) for s in part]
    yield from pieces([low for low, _ in halves if low.b > low.a])
    yield from pieces([high for _, high in halves if high.b > high.a])


def _sampled(part: Slice) -> Array:
    keys = part.keys()
    return np.append(keys[:: max(1, len(keys) // 64)], keys[-1])


class Ties:
    """Joins rows in ascending order of their keys into runs of ties.

    A table has one column per row of data: its key, its confidence, and further numbers to sum. A run has the last key,
    the largest confidence and the sums of its rows. The last run is held back, because the next piece may continue it.
    """

    def __init__(self, within: float = 0.0) -> None:
        self.within = within
        self.last: Array | None = None

    def add(self, table: Array) -> Array:
        """Add rows; return the runs that are now complete."""
        if self.last is not None:
            table = np.concatenate([self.last, table], 1)
        first = self._starts(table[0])
        last = np.append(first[1:], table.shape[1]) - 1
        tops, sums = np.maximum.reduceat(table[1], first), np.add.reduceat(table[2:], first, axis=1)
        runs = np.concatenate([table[:1, last], tops[None], sums])
        self.last = runs[:, -1:]
        return runs[:, :-1]

    def _starts(self, keys: Array) -> Array:
        with np.errstate(invalid="ignore"):  # −inf − (−inf) is NaN, which exceeds nothing: a tie
            return np.concatenate([[0], np.nonzero(keys[1:] - keys[:-1] > self.within)[0] + 1])


class Fold:
    """Running sums over runs of ties, most confident first. The totals are known from the stream's state."""

    def __init__(self, state: StreamState) -> None:
        self.state = state
        self.total_good, self.total_bad = (float(count.sum()) for count in state.ladder[:2])
        self.total_walk = float((state.width[1] - state.width[2]).sum())
        self.ties = Ties(ranking.TIE)
        self.levels = Ties()  # of equal confidence, which form the equal-mass bins
        self.good = self.bad = self.walk = 0.0  # correct and incorrect items so far, and Σ (confidence − correct)
        self.above = 0.0  # items in the equal-mass bins so far
        self.sums = dict.fromkeys(("auroc", "success", "error", "aurc", "ks"), 0.0)
        self.fpr95: float | None = None
        self.mass = np.zeros(state.bins)

    def add(self, piece: Array) -> None:
        """Add the next items, most confident first."""
        hit = piece["correct"].astype(np.float64)
        confidence = piece["confidence"]
        self._take(self.ties.add(np.stack([piece["log_error"], confidence, hit, 1 - hit, confidence - hit])))

    def _take(self, runs: Array) -> None:
        if runs.shape[1] == 0:
            return
        _, top, good, bad, signed = runs
        self._close(good, bad, signed)
        # items that tie up to rounding count with one confidence
        self._bin(self.levels.add(np.stack([-top, top, good + bad, signed])))

    def _close(self, good: Array, bad: Array, signed: Array) -> None:
        """Add complete runs to the sums."""
        g0 = self.good + np.cumsum(good) - good
        b0 = self.bad + np.cumsum(bad) - bad
        found, seen = g0 + good, g0 + b0 + good + bad
        self.sums["auroc"] += float(((g0 + good / 2) * bad).sum())
        self.sums["success"] += float((good * found / seen).sum())
        left_bad, left = self.total_bad - b0, self.state.n - g0 - b0
        self.sums["error"] += float((bad * left_bad / left).sum())
        self.sums["aurc"] += _area(g0 + b0, b0, good, bad)
        if self.fpr95 is None and self.total_good:
            reached = np.nonzero(found / self.total_good >= 0.95 - 1e-12)[0]
            if len(reached):
                self.fpr95 = float((b0 + bad)[reached[0]])
        before = self.walk + np.cumsum(signed) - signed  # Σ above each run; the total minus it is the walk from below
        self.sums["ks"] = max(self.sums["ks"], float(np.abs(self.total_walk - before).max()))
        self.good, self.bad, self.walk = self.good + good.sum(), self.bad + bad.sum(), self.walk + signed.sum()

    def _bin(self, levels: Array) -> None:
        """Add complete levels of confidence to the equal-mass bins."""
        _, _, count, signed = levels
        n, bins = self.state.n, self.state.bins
        middle = n - (self.above + np.cumsum(count) - count / 2)
        index = np.clip(np.floor(middle * bins / n), 0, bins - 1).astype(int)
        np.add.at(self.mass, index, signed)
        self.above += float(count.sum())

    def values(self) -> dict[str, float]:
        assert self.ties.last is not None
        self._take(self.ties.last)
        assert self.levels.last is not None
        self._bin(self.levels.last)
        n = self.state.n
        out = {"ks": self.sums["ks"] / n, "ece_mass": float(np.abs(self.mass).sum()) / n, "aurc": self.sums["aurc"] / n}
        both = (
            torch.tensor([[self.total_good]], dtype=torch.float64),
            torch.tensor([[self.total_bad]], dtype=torch.float64),
        )
        out["eaurc"] = out["aurc"] - float(ranking.best_aurc(*both))
        if self.total_good and self.total_bad:
            out["auroc"] = self.sums["auroc"] / (self.total_good * self.total_bad)
            out["aupr_success"] = self.sums["success"] / self.total_good
            out["aupr_error"] = self.sums["error"] / self.total_bad
            if self.fpr95 is not None:
                out["fpr95"] = self.fpr95 / self.total_bad
        return out


def _area(n0: Array, e0: Array, good: Array, bad: Array) -> float:
    """The expected risk–coverage area, summed over runs (see `ranking.aurc`)."""
    size = good + bad
    harmonic = (torch.digamma(torch.from_numpy(n0 + size + 1)) - torch.digamma(torch.from_numpy(n0 + 1))).numpy()
    return float((e0 * harmonic + bad / size * (size - n0 * harmonic)).sum())
