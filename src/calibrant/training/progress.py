"""What a run says while it works: a bar for people, a line of JSON per epoch for machines.

The log is cut back to the checkpoint when a run resumes, so that it holds each epoch once, whatever was killed when.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrant.errors import escaped
from calibrant.files import atomic
from calibrant.training.board import Board
from calibrant.types import jsonable

REDRAW_SECONDS = 0.2


class Progress:
    """Epochs and steps of one run. `bar=None`: a bar if stderr is a terminal, else a line per epoch."""

    def __init__(
        self,
        name: str,
        epochs: int,
        log: Path | None = None,
        *,
        bar: bool | None = None,
        quiet: bool = False,
        board: Board | None = None,
    ):
        self.name, self.epochs, self.log, self.quiet, self.board = name, epochs, log, quiet, board
        self.bar = sys.stderr.isatty() if bar is None else bar
        self._rich: Any = None
        self._task: Any = None
        self._drawn = 0.0
        self._last = ""

    def begin(self, epoch: int, steps: int) -> None:
        """Before the first epoch of this process: `epoch` are already done."""
        if self.log is not None:
            _cut(self.log, epoch)
        if self.board is not None:
            self.board.begin(epoch)
        if self.quiet or not self.bar:
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[says]}"),
            TimeRemainingColumn(),
        )
        self._rich = Rich(*columns, console=Console(file=sys.stderr))
        self._task = self._rich.add_task(
            escaped(self.name), total=self.epochs * steps, completed=epoch * steps, says=""
        )
        self._rich.start()

    def step(self, done: int, images: int, seconds: float) -> None:
        """After `done` steps of the whole run; cheap, and touches nothing on the device."""
        if self._rich is None or (now := time.perf_counter()) - self._drawn < REDRAW_SECONDS:
            return
        self._drawn = now
        says = f"{self._last} {images / max(seconds, 1e-9):,.0f} img/s"
        self._rich.update(self._task, completed=done, says=says)

    def epoch(self, row: Mapping[str, Any]) -> None:
        """After an epoch: one line in the log, the latest numbers beside the bar."""
        if self.log is not None:
            _append(self.log, jsonable(row))
        if self.board is not None:
            self.board.epoch(row)
        numbers = {k: row.get(k) for k in ("loss", "accuracy", "ece")}
        words = [  # in percent for people, as in every table; the log keeps fractions
            f"{k} {v:.4f}" if k == "loss" else f"{k} {100 * v:.2f} %"
            for k, v in numbers.items()
            if isinstance(v, float)
        ]
        self._last = " ".join(words)
        if not self.quiet and self._rich is None:
            rate = row.get("images_per_second") or 0.0
            self.line(f"{self.name} epoch {row['epoch']}/{self.epochs} {self._last} {rate:,.0f} img/s")

    def say(self, text: str) -> None:
        self.line(text)
        if self.log is not None and self.log.parent.is_dir():
            _append(self.log, {"event": text})

    def line(self, line: str) -> None:
        """For people alone; nothing is logged."""
        if self._rich is not None:
            self._rich.console.print(escaped(line), highlight=False, markup=False)
        else:
            print(escaped(line), file=sys.stderr)

    def end(self) -> None:
        if self.board is not None:
            self.board.end()
        if self._rich is not None:
            self._rich.stop()
            self._rich = None


def _append(log: Path, row: Any) -> None:
    with log.open("ab+") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size:
            stream.seek(size - 1)
            if stream.read(1) != b"\n":  # a line torn by a kill must not swallow this one
                stream.write(b"\n")
        stream.write(json.dumps(row).encode() + b"\n")


def _cut(log: Path, epoch: int) -> None:
    """Keep the lines of the first `epoch` epochs and what was said; a line torn by a kill goes."""
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
