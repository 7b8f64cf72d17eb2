"""Several processes at one list of units, in one time box: what the GPU runs of the papers share.

A unit is a training with what is measured of it. Each process takes the first unit that should end in time and that
nobody has (`locks`).
What is unfinished goes on in a later call on the same runs; what fails is said, marked for this call, and passed by.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from benchmarks.locks import claimed, released
from calibrant.bench.store import KEY_LENGTH
from calibrant.data import Data
from calibrant.training import checkpoint
from calibrant.training.recipe import Recipe
from calibrant.training.run import How, train

ROOT = Path(__file__).resolve().parents[1]
POLL = 1.0
CHECKPOINT_EVERY = 5


class OutOfTime(Exception):
    """The box is full; what is trained so far goes on in a later call."""


class Unit(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def lock(self) -> Path: ...
    def done(self) -> bool: ...
    def seconds(self) -> float:
        """A guess of what is left of it."""


class Foldered:
    """A training in a folder of its own, by its recipe, with its lock beside it."""

    prefix: ClassVar[str]
    recipe: Recipe
    a: argparse.Namespace

    @cached_property
    def folder(self) -> Path:
        path: Path = self.a.runs / f"{self.prefix}-{self.recipe.key()[:KEY_LENGTH]}"
        return path

    @property
    def lock(self) -> Path:
        return self.folder.with_suffix(".lock")


U = TypeVar("U", bound=Unit)


def work(units: Sequence[U], do: Callable[[U], None], deadline: float) -> None:
    """Take units in their order until none is left that should end in time."""
    while True:
        left = deadline - time.time()
        waiting = [u for u in units if not u.done() and not _failed(u, deadline)]
        mine = next((u for u in waiting if u.seconds() < left and claimed(u.lock)), None)
        if mine is None:
            return
        try:
            if not mine.done():  # somebody may have ended it since
                do(mine)
        except OutOfTime as stop:
            print(f"{mine.name}: out of time {stop}".rstrip(), flush=True)
            return
        except Exception as error:
            mine.lock.with_suffix(".failed").write_text(f"{deadline}\n{traceback.format_exc()}", "utf-8")
            print(f"{mine.name}: FAILED, {type(error).__name__}: {error}\n{traceback.format_exc()}", flush=True)
        finally:
            released(mine.lock)


def _failed(unit: Unit, deadline: float) -> bool:
    """In this call; the next one tries again."""
    path = unit.lock.with_suffix(".failed")
    return path.is_file() and path.read_text("utf-8").partition("\n")[0] == str(deadline)


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """A file that several processes want and one makes, under another name until it is whole."""
    lock = path.with_suffix(".lock")
    while not path.is_file():
        if claimed(lock):
            try:
                if not path.is_file():
                    part = path.with_name(f"part-{os.getpid()}-{path.name}")
                    make(part)
                    part.replace(path)
            finally:
                released(lock)
        else:
            time.sleep(POLL)
    return path


def spawn(module: str, argv: Sequence[str], count: int) -> list[int]:
    """`count` processes of `python -m module argv`, waited for; they end when this one does."""
    threads = str(max(1, (os.cpu_count() or 1) // count))
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"OMP_NUM_THREADS": threads, **os.environ, "PYTHONPATH": path}
    running = [subprocess.Popen([sys.executable, "-m", module, *argv], env=env) for _ in range(count)]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        return [process.wait() for process in running]
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in running:
            if process.poll() is None:
                process.terminate()


def squeezed(recipe: Recipe, epochs: int | None, batch: int | None) -> Recipe:
    """The schedule in fewer epochs, the batch larger and the rate with its root."""
    changes: dict[str, Any] = {}
    if batch is not None and batch != recipe.batch:
        changes = {"batch": batch, "optimiser.lr": recipe.optimiser.lr * math.sqrt(batch / recipe.batch)}
    scaled = recipe.scaled(epochs) if epochs is not None and epochs != recipe.epochs else recipe
    return scaled.with_settings(changes) if changes else scaled


def trained(recipe: Recipe, folder: Path, data: Data, how: How, deadline: float) -> dict[str, Any]:
    """What a training says of itself; OutOfTime, with its checkpoint, where it does not end before the deadline."""

    def watch(epoch: int, validation: object) -> None:
        if time.time() > deadline and epoch < recipe.epochs:
            raise OutOfTime(f"after epoch {epoch} of {recipe.epochs}")

    record = folder / "metrics.json"
    if record.is_file():
        found: dict[str, Any] = json.loads(record.read_text("utf-8"))
        return found
    return train(recipe, folder, replace(how, every=CHECKPOINT_EVERY, quiet=True, listen=watch), data)


def begun(folder: Path) -> int:
    """Epochs that stand in a checkpoint."""
    return max(checkpoint.epochs(folder / "checkpoint"), default=0)
