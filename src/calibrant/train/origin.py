"""RUN/levels.json: which distances a run was begun with, where they came from, and how to find that place again.

The place is written down twice, as seen from the run ("from": both may move together) and as it was ("at": the run may
move alone), each with links resolved. The network's hash decides which of them still holds what was measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.errors import CalibrantError, FileError
from calibrant.files import atomic
from calibrant.train import distances
from calibrant.train.distances import Distances
from calibrant.types import SCHEMA, Split

RECORD = "levels.json"


def describe(origin: Path, folder: Path, found: Sequence[Distances], ruler: str, count: int) -> dict[str, Any]:
    """What the run in `folder` is begun with: `found` distances, kept in `origin`, in `count` levels."""
    return {
        "schema": SCHEMA,
        "from": os.path.relpath(origin.resolve(), folder.resolve()),
        "at": str(origin.resolve()),
        "ruler": ruler,
        "levels": count,
        "network": found[0].network,
        "distances": {d.split.value: d.sha256() for d in found},
        "unmoved": {d.split.value: d.unmoved for d in found},
    }


def write(folder: Path, record: dict[str, Any]) -> None:
    atomic.write_text(folder / RECORD, json.dumps(record, indent=2))


def read(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    try:
        record = json.loads(path.read_text("utf-8"))
        if not {"from", "distances"} <= set(record):
            raise ValueError("it names no distances")
    except (OSError, ValueError, TypeError) as error:
        why, remedy = ("is damaged", "delete it and ") if path.is_file() else ("cannot be read", "")
        raise FileError(f"{path} {why} ({error}); {remedy}name the run's levels by --levels") from None
    return dict(record)


def origin_of(folder: Path) -> Path:
    """Where the levels of a run came from: the first place on record that holds the network, else the first."""
    record = read(folder)
    said = str(record["from"])
    places = [  # older records are as seen from the run's unresolved path, or from wherever the command was given
        Path(os.path.normpath(folder.resolve() / said)),
        Path(os.path.normpath(folder.absolute() / said)),
        Path(record.get("at", said)),
    ]
    return next((place for place in places if _holds(place, record)), places[0])


def is_origin(place: Path, folder: Path) -> bool:
    """Is this the network whose robustness the run in `folder` was trained by, or are these its distances?"""
    return _holds(place, read(folder))


def _holds(place: Path, record: dict[str, Any]) -> bool:
    from calibrant.train.run import load

    try:
        kept = place / f"{Split.TRAIN.value}.safetensors"
        network = distances.read(kept).network if kept.is_file() else distances.network_hash(load(place).members)
    except (CalibrantError, OSError, RuntimeError, ValueError, KeyError, TypeError):
        return False  # gone, closed or damaged: whatever it was, it is not at hand
    return record.get("network") in (None, network)  # the oldest records have none
