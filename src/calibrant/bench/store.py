"""The store of results: one JSON per cell, filed under its experiment and keyed by the content of its settings.

    results/PAPER/TABLE/ROW/SCALE-SEED-KEY.json        in git
    results/PAPER/TABLE/ROW/SCALE-SEED-KEY.npz         the predictions beside it

A cell holds, for every number, {reported, measured, note}, with commit, environment, seconds, device and command.
Failed runs are cells too. Writing is atomic; changed settings are another key, so nothing is ever overwritten by
something else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from calibrant.errors import FileError
from calibrant.files import atomic
from calibrant.files import write as write_predictions
from calibrant.files.paths import visible
from calibrant.papers import Experiment, Scale
from calibrant.types import SCHEMA, Predictions, jsonable

KEY_LENGTH = 12


@dataclass(frozen=True)
class Cell:
    """One experiment at one seed and scale. `measured`: variant → metric → value; `intervals`: (low, high) of each.

    The intervals resample the test items of this one run, or what `resampled` says.
    """

    experiment: str
    seed: int
    scale: str
    key: str
    status: Literal["done", "failed"]
    settings: Mapping[str, Any]
    measured: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    reported: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    note: str = ""
    error: str | None = None
    seconds: float = 0.0
    device: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    commit: str | None = None
    command: str = ""
    extras: Mapping[str, Any] = field(default_factory=dict)  # what a run adds: temperature, images per second
    intervals: Mapping[str, Mapping[str, tuple[float | None, float | None]]] = field(default_factory=dict)

    @property
    def resampled(self) -> str:
        """What the intervals draw again: items; of a video, as many successive frames as the settings' `block`."""
        block = self.settings.get("block")
        return "items" if block is None else "frames" if block == 1 else f"blocks of {block} frames"

    def to_dict(self) -> dict[str, Any]:
        numbers: dict[str, dict[str, dict[str, float | None]]] = {}
        for variant, row in self.measured.items():
            numbers[variant] = {}
            for metric, value in row.items():
                entry = {"reported": self.reported.get(variant, {}).get(metric), "measured": value}
                if metric in (known := self.intervals.get(variant, {})):
                    entry |= dict(zip(("low", "high"), known[metric], strict=True))
                numbers[variant][metric] = entry
        head = {k: v for k, v in vars(self).items() if k not in ("measured", "intervals", "reported", "settings")}
        return {"schema": SCHEMA, **head, "numbers": numbers, "settings": dict(self.settings)}


@dataclass(frozen=True)
class Store:
    """A folder of cells."""

    root: Path

    def path(self, experiment: Experiment, seed: int, scale: Scale) -> Path:
        key = experiment.key(seed, scale)[:KEY_LENGTH]
        return self.root / experiment.name / f"{scale}-{seed}-{key}.json"

    def find(self, experiment: Experiment, seed: int, scale: Scale) -> Cell | None:
        """The cell of exactly these settings; an earlier one of other settings does not count."""
        path = self.path(experiment, seed, scale)
        return read(path) if path.is_file() else None

    def write(self, experiment: Experiment, cell: Cell, test: Predictions | None = None) -> Path:
        path = self.root / cell.experiment / f"{cell.scale}-{cell.seed}-{cell.key[:KEY_LENGTH]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        if test is not None:
            write_predictions(path.with_suffix(".npz"), test)
        atomic.write_text(path, json.dumps(jsonable(cell.to_dict()), indent=1, ensure_ascii=False) + "\n")
        return path

    def cells(self, under: str = "") -> Iterator[Cell]:
        """Every cell below `under` (a paper, a table, a row), in order of name."""
        for path in visible(self.root / under, "**/*-*-*.json"):
            yield read(path)


def read(path: Path) -> Cell:
    """A cell from its file; what is not one is an error naming the file."""
    try:
        body = json.loads(path.read_text("utf-8"))
        numbers = body.pop("numbers")
        body.pop("schema")
        measured = {v: {m: n["measured"] for m, n in row.items()} for v, row in numbers.items()}
        said = {
            v: {m: n["reported"] for m, n in row.items() if n["reported"] is not None} for v, row in numbers.items()
        }
        reported = {v: row for v, row in said.items() if row}
        bounds = {v: {m: (n["low"], n["high"]) for m, n in row.items() if "low" in n} for v, row in numbers.items()}
        intervals = {v: row for v, row in bounds.items() if row}
        return Cell(**body, measured=measured, reported=reported, intervals=intervals)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{path} is not a cell of results ({type(error).__name__}: {error}); delete it and run again"
        ) from error
