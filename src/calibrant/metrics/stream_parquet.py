"""Parquet larger than memory → `StreamState`, a few rows at a time, in threads or on a cluster.

A task is a run of row groups of one part. Its state is a sum, so tasks may run anywhere. States are added in the order
of the rows, so the result is the same to the last bit for any number of workers. NumPy, torch and Arrow release the
interpreter's lock, so threads run in parallel. Unlike processes, they start at once and need not send their states.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from calibrant.errors import CalibrantError, InputError, SplitError
from calibrant.files import parquet
from calibrant.files.arrays import Keys, join
from calibrant.functional.scores import Scores, positive_class, reduce
from calibrant.metrics.stream import StreamState, add_to_ladder, empty_ladder, sums
from calibrant.types import Predictions

if TYPE_CHECKING:
    from calibrant.executors.cluster import RayCluster

NUMBERS = 1 << 21
"""Numbers that are decoded at a time: 16 MiB of float64."""

TASK_ROWS = 1 << 20
TASK_NUMBERS = 1 << 28
"""A task ends with the row group that reaches this many rows or numbers. A state takes 22 MB, so tasks should not be
small. A running task cannot be interrupted, so they should not take long."""

WINDOW = 64
"""Tasks of a cluster that run, or wait for an earlier one, at a time."""


@dataclass(frozen=True)
class Settings:
    """How a part is read and reduced; plain values that can be sent to another process."""

    keys: Keys = field(default_factory=Keys)
    bins: int = 15
    positive: bool = False
    ignore_index: int | None = None
    allow_reuse: bool = False
    spill: str | None = None  # a folder for sorted runs (`external_sort`)


@dataclass(frozen=True)
class Task:
    part: Path
    groups: tuple[int, ...]
    first: int  # row of the part at which the first group starts
    rows: int


@dataclass(frozen=True)
class Streamed:
    """A state, and what the files say about themselves."""

    state: StreamState
    split: str
    binary: bool

    def __add__(self, other: Streamed) -> Streamed:
        if self.split != other.split:
            raise InputError(f"the parts are of several splits ({self.split}, {other.split}); audit each alone")
        return Streamed(self.state + other.state, self.split, self.binary or other.binary)


class Result(Protocol):
    """The result of a submitted task, as of `concurrent.futures`."""

    def result(self) -> Streamed | None:
        """Wait for the result; raise the error that the task raised."""


def tasks(path: Path) -> list[Task]:
    """The row groups of all parts, gathered into tasks, each from one part."""
    found = []
    for part in parquet.parts(path):
        groups: list[int] = []
        first, rows, enough = 0, 0, min(TASK_ROWS, TASK_NUMBERS // parquet.width(part))
        for group, size in enumerate(parquet.group_rows(part)):
            groups.append(group)
            rows += size
            if rows >= enough:
                found.append(Task(part, tuple(groups), first, rows))
                groups, first, rows = [], first + rows, 0
        if rows:
            found.append(Task(part, tuple(groups), first, rows))
    return found


def stream(
    path: Path,
    settings: Settings,
    *,
    workers: int = 1,
    cluster: RayCluster | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Streamed:
    """The state of all rows under `path`, read by threads of this process or by a cluster."""
    done, whole = 0, None
    with _threads(workers) if cluster is None else closing(cluster) as readers:
        todo = tasks(path)
        total = sum(t.rows for t in todo)
        window = 2 * workers if cluster is None else WINDOW
        for task, found in zip(todo, _results(todo, settings, readers.submit, window), strict=True):
            if found is not None:
                whole = found if whole is None else whole + found
            done += task.rows
            progress(done, total)
    if whole is None:
        raise InputError(f"{path}: there are no items (N = 0)")
    return whole


def _results(
    todo: list[Task], settings: Settings, submit: Callable[..., Result], window: int
) -> Iterator[Streamed | None]:
    """The results in the order of the tasks, of which at most `window` run or wait for an earlier one."""
    running: deque[Result] = deque()
    for task in todo:
        running.append(submit(run, task, settings))
        if len(running) == window:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


@contextmanager
def _threads(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads of this process. Afterwards torch has as many threads as before."""
    own = torch.get_num_threads()
    threads = ThreadPoolExecutor(workers)
    try:
        yield threads
    finally:
        threads.shutdown(cancel_futures=True)
        torch.set_num_threads(own)


def run(task: Task, settings: Settings) -> Streamed | None:
    """Read, reduce and sum one task; None if all its items are ignored."""
    torch.set_num_threads(1)  # in this thread, or in this process of a cluster: it decides the last digit of a sum
    whole, ladder, size = None, empty_ladder(), max(1, NUMBERS // parquet.width(task.part))
    for start, scores, said in batches(task, settings, size):
        if settings.spill is not None:
            from calibrant.metrics.external_sort import spill

            spill(Path(settings.spill), task, start, scores)
        add_to_ladder(ladder, scores)
        found = Streamed(sums(scores), said.split.value, said.binary)
        whole = found if whole is None else whole + found
    return None if whole is None else replace(whole, state=replace(whole.state, ladder=ladder))


def batches(task: Task, settings: Settings, size: int) -> Iterator[tuple[int, Scores, Predictions]]:
    """(first row, scores, predictions) of each batch of a task. Errors name the row of the part."""
    for offset, arrays in parquet.batches(task.part, size, task.groups):
        start = task.first + offset
        try:
            p = join(arrays, settings.keys, ignore_index=settings.ignore_index, doubt=False)
        except CalibrantError as error:
            if settings.ignore_index is not None and "no items" in str(error):
                continue
            raise _at_row(error, start) from error
        if p.fitted_on and p.fitted_on == p.origin and not settings.allow_reuse:
            raise SplitError(f"{task.part}: the map was fitted on the same items that it is judged on (--allow-reuse)")
        scores = reduce(p, settings.bins)
        yield start, positive_class(scores, str(task.part)) if settings.positive else scores, p


def _at_row(error: CalibrantError, start: int) -> CalibrantError:
    """The error with its rows counted from the start of the part instead of the batch."""
    text = re.sub(r"\brow (\d+)", lambda m: f"row {int(m[1]) + start}", str(error))
    return type(error)(text)
