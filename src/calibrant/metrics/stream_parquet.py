"""Parquet larger than memory → `StreamState`, a few rows at a time, in threads or on a cluster.

A task is a run of row groups of one part. Its state is a sum, so tasks may run anywhere. States are added in the order
of the rows, so the result does not depend on which task ends first. NumPy, torch and Arrow release the interpreter's
lock, so threads run in parallel. Unlike processes, they start at once and need not send their states.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch

from calibrant.errors import CalibrantError, InputError, SplitError
from calibrant.executors import Pool, execute
from calibrant.files import parquet
from calibrant.files.arrays import Keys, join
from calibrant.functional.scores import Scores, positive_class, reduce
from calibrant.metrics.stream import StreamState, add_to_ladder, empty_ladder, sums
from calibrant.types import Predictions

NUMBERS = 1 << 21
"""Numbers that are decoded at a time: 16 MiB of float64."""

TASK_ROWS = 1 << 20
"""The least rows of a task, except the last of a part. A state takes 22 MB, so tasks should not be small."""


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


def tasks(path: Path) -> list[Task]:
    """The row groups of all parts, gathered into tasks of about TASK_ROWS rows, each from one part."""
    found = []
    for part in parquet.parts(path):
        groups: list[int] = []
        first = rows = 0
        for group, size in enumerate(parquet.group_rows(part)):
            groups.append(group)
            rows += size
            if rows >= TASK_ROWS:
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
    cluster: Pool | None = None,
    window: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Streamed:
    """The state of all rows under `path`, read by threads of this process or by a cluster.

    On a cluster, at most `window` states wait for an earlier one.
    """
    todo = tasks(path)
    total = sum(t.rows for t in todo)
    results = _from_threads(todo, settings, workers) if cluster is None else _from_pool(todo, settings, cluster, window)
    done, whole = 0, None
    for task, found in zip(todo, results, strict=True):
        if found is not None:
            whole = found if whole is None else whole + found
        done += task.rows
        progress(done, total)
    if whole is None:
        raise InputError(f"{path}: there are no items (N = 0)")
    return whole


def _from_threads(todo: list[Task], settings: Settings, workers: int) -> Iterator[Streamed | None]:
    if workers == 1:
        yield from (run(task, settings) for task in todo)
        return
    own = torch.get_num_threads()
    threads = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    running: deque[Future[Streamed | None]] = deque()
    try:
        for task in todo:
            running.append(threads.submit(run, task, settings))
            if len(running) == 2 * workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
        torch.set_num_threads(own)


@dataclass(frozen=True)
class Part:
    """A task as a step of an executor. It waits for the task `window` places before it, so that few states are held."""

    number: int
    task: Task
    settings: Settings
    window: int
    gpu: ClassVar[bool] = False
    lease: ClassVar[Path | None] = None

    @property
    def key(self) -> str:
        return str(self.number)

    @property
    def name(self) -> str:
        return f"{self.task.part}, rows from {self.task.first}"

    @property
    def needs(self) -> tuple[str, ...]:
        return (str(self.number - self.window),) if self.number >= self.window else ()

    def done(self) -> bool:
        return False

    def seconds(self) -> float | None:
        return None

    def run(self, deadline: float | None) -> Streamed | None:
        return run(self.task, self.settings)


def _from_pool(todo: list[Task], settings: Settings, pool: Pool, window: int) -> Iterator[Streamed | None]:
    waiting: dict[str, Streamed | None] = {}
    following = 0
    for outcome in execute([Part(i, task, settings, window) for i, task in enumerate(todo)], pool):
        if outcome.error is not None:
            raise outcome.error
        waiting[outcome.step.key] = outcome.value
        while str(following) in waiting:
            yield waiting.pop(str(following))
            following += 1


def run(task: Task, settings: Settings) -> Streamed | None:
    """Read, reduce and sum one task; None if all its items are ignored."""
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
        yield start, positive_class(scores) if settings.positive else scores, p


def _at_row(error: CalibrantError, start: int) -> CalibrantError:
    """The error with its rows counted from the start of the part instead of the batch."""
    text = re.sub(r"\brow (\d+)", lambda m: f"row {int(m[1]) + start}", str(error))
    return type(error)(text)
