"""What a run reports while it works: a bar for people, one JSON line per epoch for programs, TensorBoard on request.

When a run resumes, the log is cut back to the checkpoint, so that it holds each epoch once.
TensorBoard's events (`--tensorboard`) lie under `RUN/tensorboard/`, with the tags train/loss, train/accuracy, train/lr,
train/images_per_second, and validation/NAME for each metric of an epoch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calibrant.errors import MissingDependencyError, escaped
from calibrant.files import atomic
from calibrant.training.evaluate import EPOCH_METRICS
from calibrant.types import jsonable

REDRAW_SECONDS = 0.2
TRAIN_TAGS = {"loss": "loss", "train_accuracy": "accuracy", "lr": "lr", "images_per_second": "images_per_second"}


class Progress:
    """The progress of one run. With `bar=None`, a bar if stderr is a terminal, otherwise one line per epoch."""

    def __init__(
        self,
        name: str,
        epochs: int,
        log: Path | None = None,
        *,
        bar: bool | None = None,
        quiet: bool = False,
        tensorboard: TensorBoard | None = None,
    ):
        self.name, self.epochs, self.log, self.quiet, self.tensorboard = name, epochs, log, quiet, tensorboard
        self.bar = sys.stderr.isatty() if bar is None else bar
        self._rich: Any = None
        self._task: Any = None
        self._drawn = 0.0
        self._last = ""

    def begin(self, epoch: int, steps: int) -> None:
        """Start the report; `epoch` epochs are already finished."""
        if self.log is not None:
            _cut(self.log, epoch)
        if self.tensorboard is not None:
            self.tensorboard.begin(epoch)
        if self.quiet or not self.bar:
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
        )
        self._rich = Rich(*columns, console=Console(file=sys.stderr))
        self._task = self._rich.add_task(
            escaped(self.name), total=self.epochs * steps, completed=epoch * steps, numbers=""
        )
        self._rich.start()

    def step(self, done: int, images: int, seconds: float) -> None:
        """Report `done` steps of the whole run. This reads nothing from the device."""
        if self._rich is None or (now := time.perf_counter()) - self._drawn < REDRAW_SECONDS:
            return
        self._drawn = now
        numbers = f"{self._last} {images / max(seconds, 1e-9):,.0f} img/s"
        self._rich.update(self._task, completed=done, numbers=numbers)

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Report an epoch: one line in the log, and the latest numbers beside the bar."""
        if self.log is not None:
            _append(self.log, jsonable(row))
        if self.tensorboard is not None:
            self.tensorboard.epoch(row)
        numbers = {k: row.get(k) for k in ("loss", "accuracy", "ece")}
        words = [  # percent for people, as in every table; the log keeps fractions
            f"{k} {v:.4f}" if k == "loss" else f"{k} {100 * v:.2f}%" for k, v in numbers.items() if isinstance(v, float)
        ]
        self._last = " ".join(words)
        if not self.quiet and self._rich is None:
            rate = row.get("images_per_second") or 0.0
            self.line(f"{self.name} epoch {row['epoch']}/{self.epochs} {self._last} {rate:,.0f} img/s")

    def say(self, text: str) -> None:
        """Print a message on stderr and write it to the log."""
        self.line(text)
        if self.log is not None and self.log.parent.is_dir():
            _append(self.log, {"event": text})

    def line(self, line: str) -> None:
        """Print a message on stderr only."""
        if self._rich is not None:
            self._rich.console.print(escaped(line), highlight=False, markup=False)
        else:
            print(escaped(line), file=sys.stderr)

    def end(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.end()
        if self._rich is not None:
            self._rich.stop()
            self._rich = None


class TensorBoard:
    """Writes the numbers of each epoch as events. A resumed run replaces the events of epochs that it repeats."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "tensorboard"
        self._writer: Any = None

    @staticmethod
    def check_installed() -> None:
        if find_spec("tensorboard") is None:
            raise MissingDependencyError("--tensorboard needs the extra: pip install 'calibrant[tensorboard]'")

    def begin(self, epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.folder), purge_step=epoch + 1)

    def epoch(self, row: Mapping[str, Any]) -> None:
        named = {f"train/{tag}": row.get(key) for key, tag in TRAIN_TAGS.items()}
        named |= {f"validation/{name}": row.get(name) for name in EPOCH_METRICS}
        for tag, value in named.items():
            if value is not None:
                self._writer.add_scalar(tag, value, row["epoch"])
        self._writer.flush()  # a kill loses no finished epoch

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _append(log: Path, row: Any) -> None:
    with log.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def _cut(log: Path, epoch: int) -> None:
    """Keep the messages and the lines of the first `epoch` epochs; drop lines that a kill left incomplete."""
    if not log.is_file():
        return
    kept = []
    for line in log.read_text("utf-8", errors="replace").splitlines():
        try:
            if json.loads(line).get("epoch", 0) <= epoch:
                kept.append(line + "\n")
        except (ValueError, AttributeError, TypeError, RecursionError):
            continue
    atomic.write_text(log, "".join(kept))
