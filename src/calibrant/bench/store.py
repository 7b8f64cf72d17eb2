"""The store of results: every measurement once, under a hash of its settings, with the table rows that show it.

    results/cells/KEY.json          settings, numbers, what made them, and `rows`: row → scale, remarks
    results/logits/RUN-SPLIT.npz    predictions of a training; the cells' `extras` have its name in `run`

One network can be a row of six tables. Then it is one file with six `rows`, and `Store.cells` returns it once per row.
The scale belongs to the row: 20 epochs are a tenth of one row's schedule and all of another's. What the papers report
is in `calibrant.papers`, not here. A failed run is a cell too. A file carries its own hash and is written atomically.
Other settings have another key, so no measurement overwrites another.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from calibrant.errors import FileError
from calibrant.files import hashed, locks
from calibrant.files.paths import visible
from calibrant.papers import Experiment, Scale
from calibrant.papers.experiment import editions
from calibrant.papers.reported import Numbers, reported_numbers
from calibrant.types import Split, jsonable

KEY_LENGTH = 12
SCHEMA = 2
"""The version of the files; version 1 had a file per row."""
FOLDER, LOGITS = "cells", "logits"
WIDE = 120
"""A table with more characters than this gets a line per entry; a shorter one stays on a single line."""


@dataclass(frozen=True)
class Cell:
    """One experiment at one seed and scale. `measured`: variant → metric → value; `intervals`: its (low, high).

    The intervals resample what `resampled` says, usually the test items of this one run.
    """

    experiment: str
    seed: int
    scale: str
    key: str
    status: Literal["done", "failed"]
    settings: Mapping[str, Any]
    measured: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    note: str = ""
    error: str | None = None
    seconds: float = 0.0
    device: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    commit: str | None = None
    command: str = ""
    extras: Mapping[str, Any] = field(default_factory=dict)  # further facts: temperature, images per second
    intervals: Mapping[str, Mapping[str, tuple[float | None, float | None]]] = field(default_factory=dict)

    @property
    def reported(self) -> Numbers:
        """What the paper reports of this row."""
        return reported_numbers(self.experiment)

    @property
    def stale(self) -> bool:
        """Whether a later edition of one of its steps computes something else."""
        return bool(editions(self.settings) != self.settings.get("editions", {}))

    @property
    def counts(self) -> bool:
        """Whether tables show the cell."""
        return self.status == "done" and not self.stale

    @property
    def resampled(self) -> str:
        """What the intervals resample: items, or, for a video, blocks of successive frames."""
        block = self.settings.get("block")
        return "items" if block is None else "frames" if block == 1 else f"blocks of {block} frames"

    @property
    def timed(self) -> bool:
        """Whether `seconds` is the time of its training, which it is not for published networks and pooled logits."""
        known = self.settings.get("recipe") is not None and not {"pooled", "published"} & self.settings.keys()
        return self.status == "done" and known and self.seconds > 0

    @property
    def trainings(self) -> int:
        """How many trainings `seconds` includes: the networks of its pool, times the points of its selection."""
        grid = (self.settings["recipe"].get("selection") or {}).get("grid", {})
        return int(self.settings.get("pool", 1)) * math.prod(len(values) for values in grid.values())

    def to_dict(self) -> dict[str, Any]:
        """The cell for `--json`: every number beside what the paper reports."""
        numbers: dict[str, dict[str, dict[str, float | None]]] = {}
        for variant, row in self.measured.items():
            numbers[variant] = {}
            for metric, value in row.items():
                entry = {"reported": self.reported.get(variant, {}).get(metric), "measured": value}
                if metric in (known := self.intervals.get(variant, {})):
                    entry |= dict(zip(("low", "high"), known[metric], strict=True))
                numbers[variant][metric] = entry
        head = {k: v for k, v in vars(self).items() if k not in ("measured", "intervals", "settings")}
        return {"schema": SCHEMA, **head, "numbers": numbers, "settings": dict(self.settings)}


BOTH = (Split.CALIBRATION, Split.TEST)
"""The splits on which a calibrator is fitted and judged."""
NOT_STORED = ("experiment", "scale", "note", "measured", "intervals")


@dataclass(frozen=True)
class Store:
    """A folder of cells. A damaged or edited file raises an error; with `damaged`, the error goes there, and the file
    is left out."""

    root: Path
    damaged: Callable[[FileError], None] | None = None

    def existing(self) -> Store:
        """The store itself; an error if there is none in the folder."""
        if not (self.root / FOLDER).is_dir():
            raise not_a_store(self.root)
        return self

    def path(self, key: str) -> Path:
        return self.root / FOLDER / f"{key[:KEY_LENGTH]}.json"

    def find(self, experiment: Experiment, seed: int, scale: Scale) -> Cell | None:
        """The cell of exactly these settings, whichever row it was measured for."""
        path = self.path(experiment.key(seed, scale))
        found = self.read(path) if path.is_file() else []
        if not found:
            return None
        scale_name, note = experiment.scale_name(scale), experiment.remark(scale)
        return replace(found[0], experiment=experiment.name, scale=scale_name, note=note)

    def write(self, cell: Cell) -> Path:
        """Write a cell. A finished cell is never changed; rows and numbers that it lacks are added."""
        path = self.path(cell.key)
        body = jsonable({"schema": SCHEMA, "rows": {cell.experiment: [cell.scale, cell.note]}, **_body(cell)})
        with locks.alone_in(self.root / FOLDER, wait=True):
            stored = read_body(path) if path.is_file() else {}
            if stored.get("status") == "done":
                body = _completed(stored, body)
            hashed.write(path, {**body, "rows": {**stored.get("rows", {}), **body["rows"]}}, text)
        return path

    def read(self, path: Path, under: str = "") -> list[Cell]:
        """The cells of a file, one for each row that is `under` a name."""
        try:
            return list(_rows(path, under))
        except FileError as error:
            if self.damaged is None:
                raise
            self.damaged(error)
            return []

    def logits(self, run: str, split: str) -> Path:
        """The file of a training's predictions."""
        return self.root / LOGITS / f"{run[:KEY_LENGTH]}-{split}.npz"

    def of_training(self, run: str) -> Cell | None:
        """A cell of a training whose predictions are in the store, so that no training is needed to measure another."""
        if not all(self.logits(run, split.value).is_file() for split in BOTH):
            return None
        return _trained(self.root).get(run)

    def cells(self, under: str = "") -> Iterator[Cell]:
        """Every cell of a paper, a table or a row (by default all), sorted by name."""
        found: list[Cell] = []
        with _no_garbage_collection():
            for path in visible(self.root / FOLDER, "*.json"):
                found += self.read(path, under)
        yield from sorted(found, key=lambda c: (c.experiment, c.scale, c.seed, c.key))


def not_a_store(place: Path | str) -> FileError:
    """The error for a folder or URL that holds no cells."""
    return FileError(
        f"{place} is not a store of results: it has no folder {FOLDER!r}; measure some cells with "
        "`calibrant bench run`, or name their folder"
    )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector, which takes a third of the time when millions of small objects are made."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@lru_cache(maxsize=1)
def _trained(root: Path) -> dict[str, Cell]:
    """Run → one of its cells. Read once: a process finds what it trains later in its folder of runs."""
    cells = Store(root, lambda error: None).cells()  # damaged cells are left out
    done = (c for c in cells if c.status == "done" and "pool" not in c.settings)
    return {c.extras["run"]: c for c in done if "run" in c.extras}


def _body(cell: Cell) -> dict[str, Any]:
    numbers = {
        variant: {m: [v, *cell.intervals.get(variant, {}).get(m, ())] for m, v in row.items()}
        for variant, row in cell.measured.items()
    }
    return {**{k: v for k, v in vars(cell).items() if k not in NOT_STORED}, "numbers": numbers}


def _completed(stored: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The file of a finished cell, with the rows, numbers and extras that another file of the same settings adds."""
    if other["status"] != "done":
        return {**stored, "rows": {**other["rows"], **stored["rows"]}}
    numbers = {v: {**row, **stored["numbers"].get(v, {})} for v, row in other["numbers"].items()}
    joined = {part: {**other[part], **stored[part]} for part in ("rows", "extras")}
    return {**stored, **joined, "numbers": {**stored["numbers"], **numbers}}


def read_body(path: Path) -> dict[str, Any]:
    """The content of a file; an edited file, or one of another version, is an error."""
    body = hashed.read(path)
    if body.get("schema") != SCHEMA:
        raise FileError(
            f"{path} has schema {body.get('schema')}, this version reads {SCHEMA}; use the version that wrote it"
        )
    return body


def _rows(path: Path, under: str = "") -> Iterator[Cell]:
    """Yield a cell for each row of a file that is `under` a name; a file that is not a cell is an error."""
    body = read_body(path)
    try:
        rows, numbers = body.pop("rows"), body.pop("numbers")
        body.pop("schema")
        wanted = [row for row in rows if not under or f"{row}/".startswith(f"{under.strip('/')}/")]
        if not wanted:
            return
        measured = {v: {m: n[0] for m, n in row.items()} for v, row in numbers.items()}
        bounds = {v: {m: (n[1], n[2]) for m, n in row.items() if len(n) > 1} for v, row in numbers.items()}
        intervals = {v: row for v, row in bounds.items() if row}
        for row in wanted:
            scale, note = rows[row]
            body |= {"experiment": row, "scale": scale, "note": note}
            yield Cell(**body, measured=measured, intervals=intervals)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise FileError(
            f"{path} is not a cell of results ({type(error).__name__}: {error}); delete it and run again"
        ) from error


def text(body: Mapping[str, Any]) -> str:
    """JSON with one line per key, and per entry of a long table; arrays stay on one line."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))

    lines = []
    for key, value in body.items():
        whole = line(value)
        if isinstance(value, Mapping) and len(whole) > WIDE:
            whole = "{\n" + ",\n".join(f"  {line(k)}: {line(v)}" for k, v in value.items()) + "\n }"
        lines.append(f" {line(key)}: {whole}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
