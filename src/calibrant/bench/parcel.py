"""Stores on the move: merged with each other, packed into a few small files, and unpacked elsewhere.

`pack` writes `parcel-00.zip`, `parcel-01.zip`, … for machines that can exchange only a few small files: all cells
first, then logits while there is room. Unpacking is merging what the parcels hold. Another store may be a URL that
fsspec knows.
"""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from calibrant.bench.store import FOLDER, LOGITS, Store
from calibrant.errors import FileError, InputError, escaped
from calibrant.files import atomic
from calibrant.files.paths import existing, readable, visible

ENTRY = re.compile(rf"{FOLDER}/[0-9a-f]{{12}}\.json|{LOGITS}/[0-9a-f]{{12}}-\w+\.npz")
MIB = 1 << 20
HEAD = 256
"""Bytes that an entry takes in an archive besides its content and its name, and a generous margin."""


@dataclass(frozen=True)
class Merged:
    """How many cells and files of logits were new, and how many cells were there already."""

    cells: int
    known: int
    logits: int


def merge(source: Store, target: Store) -> Merged:
    """Copy what `source` has into `target`. A cell of both keeps the rows and numbers of both; done beats failed."""
    new = known = 0
    for path in visible(source.root / FOLDER, "*.json"):
        cells, there = list(source.read(path)), target.root / FOLDER / path.name
        if not there.is_file():
            new += 1
        else:
            known += 1
            if there.read_bytes() == path.read_bytes():
                continue
            if cells[0].status == "failed" and next(target.read(there)).status == "done":
                continue
        for cell in cells:
            target.write(cell)
    arrays = [p for p in visible(source.root / LOGITS, "*.npz") if not (target.root / LOGITS / p.name).exists()]
    for path in arrays:
        (target.root / LOGITS).mkdir(parents=True, exist_ok=True)
        with atomic.file(target.root / LOGITS / path.name) as temporary:
            shutil.copyfile(path, temporary)
    return Merged(new, known, len(arrays))


@contextmanager
def at(place: str, *, write: bool = False) -> Iterator[Store]:
    """The store in a folder, or a copy of the one at a URL, which is written back if it is to be changed."""
    if "://" not in place:
        if not write and not (Path(place) / FOLDER).is_dir():
            raise FileError(f"{place} is not a store of results: it has no folder {FOLDER!r}")
        yield Store(Path(place))
        return
    from fsspec.core import url_to_fs

    with TemporaryDirectory() as folder:
        here = Path(folder) / "store"
        here.mkdir()
        with _reachable(place):
            system, path = url_to_fs(place)
            there = bool(system.exists(f"{path}/{FOLDER}"))
            if there:
                system.get(f"{path.rstrip('/')}/", f"{here}/", recursive=True)
        if not there and not write:
            raise FileError(f"{place} is not a store of results: it has no folder {FOLDER!r}")
        yield Store(here)
        if write:
            with _reachable(place):
                system.put(f"{here}/", f"{path.rstrip('/')}/", recursive=True)


@contextmanager
def _reachable(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # every file system of fsspec has errors of its own
        raise FileError(f"{place} cannot be reached ({type(error).__name__}: {error})") from error


@dataclass(frozen=True)
class Packed:
    """The archives, and what had no room in them."""

    files: tuple[Path, ...]
    left: tuple[str, ...]


def pack(store: Store, out: Path, max_files: int = 8, max_mib: float = 16.0) -> Packed:
    """Cells, then logits, into at most `max_files` archives of at most `max_mib` each."""
    entries = [*visible(store.root / FOLDER, "*.json"), *visible(store.root / LOGITS, "*.npz")]
    if not entries:
        raise InputError(f"{store.root} has no cells to pack")
    if old := visible(out, "*.zip"):
        raise FileError(f"{out} holds {old[0].name} already; name another folder, or remove it")
    parcels: list[list[Path]] = []
    rooms: list[int] = []
    left: list[str] = []
    for path in entries:
        name = path.relative_to(store.root).as_posix()
        size = len(zlib.compress(path.read_bytes())) + 2 * len(name) + HEAD
        if all(room < size for room in rooms) and len(rooms) < max_files:
            parcels.append([])
            rooms.append(int(max_mib * MIB) - HEAD)
        fitting = next((i for i, room in enumerate(rooms) if room >= size), None)
        if fitting is None:
            left.append(name)
        else:
            parcels[fitting].append(path)
            rooms[fitting] -= size
    out.mkdir(parents=True, exist_ok=True)
    files = tuple(out / f"parcel-{i:02d}.zip" for i, found in enumerate(parcels) if found)
    for path, found in zip(files, (p for p in parcels if p), strict=True):
        with atomic.file(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for each in found:
                archive.write(each, each.relative_to(store.root).as_posix())
    return Packed(files, tuple(left))


def unpack(folder: Path, target: Store) -> Merged:
    """Merge what the parcels in a folder hold into a store."""
    parcels = visible(existing(folder), "*.zip")
    if not parcels:
        raise FileError(f"{folder} has no parcel; give the folder that `calibrant bench pack -o` wrote")
    with TemporaryDirectory() as held:
        for parcel in parcels:
            with readable(parcel, "this parcel"), zipfile.ZipFile(parcel) as archive:
                for name in archive.namelist():
                    if not ENTRY.fullmatch(name):
                        raise FileError(f"{parcel} holds {escaped(name)}, no file of a store; nothing was unpacked")
                    archive.extract(name, held)
        return merge(Store(Path(held)), target)
