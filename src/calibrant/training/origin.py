"""RUN/levels.json: which distances a run was begun with, and of which network.

"from" says where they came from, as a reminder. It is never followed: what lies outside a run is read only where the
user names it (`--levels`), and the network's hash tells whether that is what was measured.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.errors import CalibrantError, FileError
from calibrant.files import sealed
from calibrant.training import distances
from calibrant.training.distances import Distances
from calibrant.types import SCHEMA, Split

RECORD = "levels.json"


def describe(origin: Path, folder: Path, found: Sequence[Distances], ruler: str, count: int) -> dict[str, Any]:
    """What the run in `folder` is begun with: `found` distances, kept in `origin`, in `count` levels."""
    return {
        "schema": SCHEMA,
        "from": os.path.relpath(origin.resolve(), folder.resolve()),
        "ruler": ruler,
        "levels": count,
        "network": found[0].network,
        "distances": {d.split.value: d.sha256() for d in found},
        "unmoved": {d.split.value: d.unmoved for d in found},
    }


def write(folder: Path, record: dict[str, Any]) -> None:
    sealed.write(folder / RECORD, record)


def read(folder: Path) -> dict[str, Any]:
    record = sealed.read(folder / RECORD)
    if not {"from", "distances"} <= set(record):
        raise FileError(f"{folder / RECORD} names no distances; delete it and name the run's levels by --levels")
    return record


def is_origin(place: Path, folder: Path) -> bool:
    """Is this the network whose robustness the run in `folder` was trained by, or are these its distances?"""
    from calibrant.training.run import load

    record = read(folder)
    try:
        kept = place / f"{Split.TRAIN.value}.safetensors"
        network = distances.read(kept).network if kept.is_file() else distances.network_hash(load(place).members)
    except (CalibrantError, OSError):
        return False  # gone, closed or damaged: whatever it was, it is not at hand
    return record.get("network") in (None, network)  # the oldest records have none
