"""The store of results: every measurement once, under the content of its settings, with the table rows that show it.

    results/cells/KEY.json          settings, numbers, what they were made with, and `rows`: row → scale, remarks
    results/logits/RUN-SPLIT.npz    predictions of the training that the cells' `extras` call `run`

One network may be a row of six tables: it is one file with six `rows`, and `Store.cells` gives it once for each of
them. Its scale depends on the row: 20 epochs are a tenth of one row's schedule, and all of another's. What the papers
report is not in it: `calibrant.papers` has that. A failed run is a cell too. A file carries its hash and is written
whole or not at all; other settings have another key, so nothing is overwritten by something else.
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from calibrant.errors import FileError
from calibrant.files import hashed, locks
from calibrant.files.paths import visible
from calibrant.papers import PAPERS, Experiment, Scale
from calibrant.papers.experiment import editions
from calibrant.types import Split, jsonable

KEY_LENGTH = 12
SCHEMA = 2
"""Of a file of the store; 1 was a file for each row."""
FOLDER, LOGITS = "cells", "logits"
WIDE = 120
"""Letters: a longer table of a cell has a line for each of its entries, a shorter one a single line."""


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
    reported: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of the papers' record, never stored
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
    def stale(self) -> bool:
        """Whether a step that made it computes something else today."""
        return bool(editions(self.settings) != self.settings.get("editions", {}))

    @property
    def counts(self) -> bool:
        """Whether it stands in tables."""
        return self.status == "done" and not self.stale

    @property
    def resampled(self) -> str:
        """What the intervals draw again: items; of a video, as many successive frames as the settings' `block`."""
        block = self.settings.get("block")
        return "items" if block is None else "frames" if block == 1 else f"blocks of {block} frames"

    @property
    def timed(self) -> bool:
        """Whether its seconds are those of a training: not where others trained, nor where logits were pooled later."""
        known = self.settings.get("recipe") is not None and not {"pooled", "published"} & self.settings.keys()
        return self.status == "done" and known and self.seconds > 0

    @property
    def trainings(self) -> int:
        """How many trainings its seconds are of: those of its pool, and of each the points of its selection."""
        grid = (self.settings["recipe"].get("selection") or {}).get("grid", {})
        return int(self.settings.get("pool", 1)) * math.prod(len(values) for values in grid.values())

    def to_dict(self) -> dict[str, Any]:
        """For people and `--json`: every number with what the paper reports."""
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


BOTH = (Split.CALIBRATION, Split.TEST)
"""What a calibrator is fitted on, and what it is judged on."""
NOT_STORED = ("experiment", "scale", "note", "measured", "intervals", "reported")


@dataclass(frozen=True)
class Store:
    """A folder of cells. A file that is no cell, or was edited, is an error; with `damaged` it is told and left out."""

    root: Path
    damaged: Callable[[FileError], None] | None = None

    def existing(self) -> Store:
        """Itself, if there is a store."""
        self.check_version()
        if not (self.root / FOLDER).is_dir():
            raise FileError(
                f"{self.root} is not a store of results: it has no folder {FOLDER!r}; measure some cells with "
                "`calibrant bench run`, or pass their folder with --results"
            )
        return self

    def path(self, key: str) -> Path:
        return self.root / FOLDER / f"{key[:KEY_LENGTH]}.json"

    def find(self, experiment: Experiment, seed: int, scale: Scale) -> Cell | None:
        """The cell of exactly these settings, whichever row it was measured for; others do not count."""
        path = self.path(experiment.key(seed, scale))
        found = next(self.read(path), None) if path.is_file() else None
        if found is None:
            return None
        return replace(
            found,
            experiment=experiment.name,
            scale=experiment.scale_name(scale),
            note=experiment.remark(scale),
            reported=experiment.reported,
        )

    def write(self, cell: Cell) -> Path:
        """File a cell. What is measured stays as it is, whatever comes later, a failure too; only what it lacks, rows
        and numbers, is added."""
        self.check_version()
        path = self.path(cell.key)
        body = jsonable({"schema": SCHEMA, "rows": {cell.experiment: [cell.scale, cell.note]}, **_body(cell)})
        with locks.alone_in(self.root / FOLDER, wait=True):
            there = read_body(path) if path.is_file() else {}
            if there.get("status") == "done":
                body = _completed(there, body)
            hashed.write(path, {**body, "rows": {**there.get("rows", {}), **body["rows"]}}, text)
        return path

    def read(self, path: Path) -> Iterator[Cell]:
        """The cells of a file, one for each of its rows."""
        yield from self._intact(path, {})

    def _intact(self, path: Path, *how: Any) -> list[Cell]:
        try:
            return list(_rows(path, *how))
        except FileError as error:
            if self.damaged is None:
                raise
            self.damaged(error)
            return []

    def logits(self, run: str, split: str) -> Path:
        """Where the predictions of a training lie."""
        return self.root / LOGITS / f"{run[:KEY_LENGTH]}-{split}.npz"

    def of_training(self, run: str) -> Cell | None:
        """A cell of a training whose predictions are here: others of it can be measured without training again."""
        if not all(self.logits(run, split.value).is_file() for split in BOTH):
            return None
        return _trained(self.root).get(run)

    def cells(self, under: str = "", *, numbers: bool = True) -> Iterator[Cell]:
        """Every cell of a paper, a table or a row, in the order of their names; by default all. Without `numbers` and
        extras, which are most of a file, they are read in half of the time."""
        reported = {e.name: e.reported for paper in PAPERS.values() for e in paper.experiments}
        self.check_version()
        found: list[Cell] = []
        with _collecting_later():
            for path in visible(self.root / FOLDER, "*.json"):
                found += self._intact(path, reported, under, numbers)
        yield from sorted(found, key=lambda c: (c.experiment, c.scale, c.seed, c.key))

    def check_version(self) -> None:
        """Refuse a folder of an earlier version."""
        if not (self.root / FOLDER).is_dir() and visible(self.root, "*/*/*/*-*-*.json"):
            raise FileError(
                f"{self.root} is of an earlier version, with a file for each row; use that version to read it"
            )


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Without the collector of cycles, which would look at millions of numbers again and again: a third of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@lru_cache(maxsize=1)
def _trained(root: Path) -> dict[str, Cell]:
    """Run → a cell of it; read once, because what a process trains itself it finds in its folder of runs."""
    cells = Store(root, lambda error: None).cells()  # whoever needs a damaged one is told
    done = (c for c in cells if c.status == "done" and "pool" not in c.settings)
    return {c.extras["run"]: c for c in done if "run" in c.extras}


def _body(cell: Cell) -> dict[str, Any]:
    numbers = {
        variant: {m: [v, *cell.intervals.get(variant, {}).get(m, ())] for m, v in row.items()}
        for variant, row in cell.measured.items()
    }
    return {**{k: v for k, v in vars(cell).items() if k not in NOT_STORED}, "numbers": numbers}


def _completed(there: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A file of a measured cell, with what another one of the same settings has besides."""
    if more["status"] != "done":
        return {**there, "rows": {**more["rows"], **there["rows"]}}
    numbers = {v: {**row, **there["numbers"].get(v, {})} for v, row in more["numbers"].items()}
    added = {part: {**more[part], **there[part]} for part in ("rows", "extras")}
    return {**there, **added, "numbers": {**there["numbers"], **numbers}}


LONG = re.compile(rb'^ "(numbers|extras)": \{\n(?:  .*\n)+ \}', re.MULTILINE)
"""The long tables of a file, as `text` writes them."""


def read_body(path: Path, part: Callable[[bytes], bytes] = lambda data: data) -> dict[str, Any]:
    """A file of this version as it is written; an edited one, or another version's, is an error."""
    body = hashed.read(path, part=part)
    if body.get("schema") != SCHEMA:
        raise FileError(
            f"{path} has schema {body.get('schema')}, this version reads {SCHEMA}; use the version that wrote it"
        )
    return body


def _rows(path: Path, reported: Mapping[str, Any], under: str = "", all_of_it: bool = True) -> Iterator[Cell]:
    """A cell for each row of a file that is `under` a name; what is not a cell is an error naming the file."""
    body = read_body(path, lambda data: data if all_of_it else LONG.sub(rb' "\1": {}', data))
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
            body |= {"experiment": row, "scale": scale, "note": note, "reported": reported.get(row, {})}
            yield Cell(**body, measured=measured, intervals=intervals)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise FileError(
            f"{path} is not a cell of results ({type(error).__name__}: {error}); delete it and run again"
        ) from error


def text(body: Mapping[str, Any]) -> str:
    """JSON with a line for every key, and for every entry of a long table: arrays stay on one line."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))

    lines = []
    for key, value in body.items():
        whole = line(value)
        if isinstance(value, Mapping) and len(whole) > WIDE:
            whole = "{\n" + ",\n".join(f"  {line(k)}: {line(v)}" for k, v in value.items()) + "\n }"
        lines.append(f" {line(key)}: {whole}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
