"""Merge stores, pack a store into a few small files, and unpack it elsewhere.

`pack` writes `parcel-00.zip`, `parcel-01.zip`, … for machines that can exchange only a few small files: all cells
first, then, on request, trainings that are not measured yet, then logits while there is room. `unpack` merges what the
parcels hold; a training is resumed from its last checkpoint on the other machine. `merge` also takes a URL that fsspec
knows.
"""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from calibrant.bench.store import FOLDER, LOGITS, Store, not_a_store
from calibrant.errors import FileError, InputError, escaped
from calibrant.files import atomic
from calibrant.files.outputs import RUN
from calibrant.files.paths import existing, readable, visible

RUNS = "runs"
ENTRY = re.compile(
    rf"{FOLDER}/[0-9a-f]{{12}}\.json|{LOGITS}/[0-9a-f]{{12}}-\w+\.npz|{RUNS}/[0-9a-f]{{12}}(/\w[\w.-]*)+"
)
MIB = 1 << 20
HEAD = 256
"""An upper bound of the bytes that an entry takes in an archive besides its content and its name."""
SHRINK = 2
"""An upper bound of how much compression shrinks a training; weights hardly shrink at all."""
TRIES = 20
"""How often to retry copying a training whose files change meanwhile."""


@dataclass(frozen=True)
class Merged:
    """How many cells, files of logits and trainings were new, how many cells were known, and what is wrong with the
    damaged cells that were left out."""

    cells: int
    known: int
    logits: int
    trainings: int = 0
    damaged: tuple[str, ...] = ()


def merge(source: Store, target: Store) -> Merged:
    """Copy the cells and logits of `source` into `target`. A cell that both have keeps the numbers of `target` and
    gains the rows and numbers that it lacks; a finished cell replaces a failed one."""
    new = known = 0
    damaged = []
    for path in visible(source.root / FOLDER, "*.json"):
        there = target.root / FOLDER / path.name
        same = there.is_file() and there.read_bytes() == path.read_bytes()
        try:
            fresh, cells = not there.is_file(), source.read(path)
            for cell in [] if same else cells:
                target.write(cell)
        except FileError as error:
            damaged.append(str(error))
            continue
        new, known = new + fresh, known + (not fresh)
    arrays = [p for p in visible(source.root / LOGITS, "*.npz") if not (target.root / LOGITS / p.name).exists()]
    for path in arrays:
        (target.root / LOGITS).mkdir(parents=True, exist_ok=True)
        with atomic.file(target.root / LOGITS / path.name) as temporary:
            shutil.copyfile(path, temporary)
    return Merged(new, known, len(arrays), damaged=tuple(damaged))


@contextmanager
def at(place: str, *, write: bool = False) -> Iterator[Store]:
    """The store in a folder, or a local copy of the store at a URL; with `write` the copy is uploaded at the end."""
    if "://" not in place:
        store = Store(Path(place))
        yield store if write else store.existing()
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
            raise not_a_store(place)
        yield Store(here)
        if write:
            with _reachable(place):
                system.put(f"{here}/", f"{path.rstrip('/')}/", recursive=True)


@contextmanager
def _reachable(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # every file system of fsspec raises its own errors
        raise FileError(f"{place} cannot be reached ({type(error).__name__}: {error})") from error


@dataclass(frozen=True)
class Packed:
    """The archives, and the names of what did not fit into them."""

    files: tuple[Path, ...]
    left: tuple[str, ...]


Unit = dict[str, Path]
"""Files that travel together or not at all: name in the archive → file."""


def trainings(runs: Path, store: Store, held: Path, most: int) -> tuple[list[Unit], list[str]]:
    """Copy the trainings that have a checkpoint but no predictions in the store into `held`. Trainings that cannot fit
    into an archive of `most` bytes are only named, because copying and compressing them would take minutes."""
    begun = [p.parent for p in visible(runs, "*/checkpoint")]
    begun = [run for run in begun if not store.logits(run.name, "test").is_file()]
    small = [run for run in begun if _size(run) <= SHRINK * most]
    copies = [_copied(run, held / RUNS / run.name) for run in small]
    units = [{p.relative_to(held).as_posix(): p for p in found} for found in copies if found]
    return units, [f"{RUNS}/{run.name}" for run in begun if run not in small]


def _size(run: Path) -> int:
    total = 0
    for path in visible(run, "**/*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _copied(run: Path, to: Path) -> list[Path]:
    """Copy the files of a training that may still run; the copy is as consistent as the folder after a kill."""
    for _ in range(TRIES):
        shutil.rmtree(to, ignore_errors=True)
        with suppress(FileNotFoundError):  # the training has replaced its checkpoint meanwhile
            names = [p.relative_to(run) for p in visible(run, "**/*") if p.is_file()]
            for name in names:
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run / name, to / name)
            return [to / name for name in names]
    return []


def pack(store: Store, out: Path, max_files: int = 8, max_mib: float = 16.0, runs: Path | None = None) -> Packed:
    """Pack cells, then unmeasured trainings, then logits into at most `max_files` archives of at most `max_mib` MiB."""
    with TemporaryDirectory() as held:
        most = int(max_mib * MIB)
        begun, large = ([], []) if runs is None else trainings(runs, store, Path(held), most)
        cells, arrays = visible(store.root / FOLDER, "*.json"), visible(store.root / LOGITS, "*.npz")
        own = [[{p.relative_to(store.root).as_posix(): p} for p in part] for part in (cells, arrays)]
        made = _packed([*own[0], *begun, *own[1]], store, out, max_files, most)
        return replace(made, left=(*large, *made.left))


def _packed(units: Sequence[Unit], store: Store, out: Path, max_files: int, most: int) -> Packed:
    """Write the archives; each unit goes into the first one that has room for it."""
    if not units:
        raise InputError(f"{store.root} has no cells to pack")
    if old := visible(out, "*.zip"):
        raise FileError(f"{out} holds {old[0].name} already; name another folder, or remove it")
    parcels: list[list[Unit]] = []
    rooms: list[int] = []
    left: list[str] = []
    for unit in units:
        size = sum(len(zlib.compress(path.read_bytes())) + 2 * len(name) + HEAD for name, path in unit.items())
        if all(room < size for room in rooms) and len(rooms) < max_files:
            parcels.append([])
            rooms.append(most - HEAD)
        fitting = next((i for i, room in enumerate(rooms) if room >= size), None)
        if fitting is None:
            left.append(min(unit, key=len))
        else:
            parcels[fitting].append(unit)
            rooms[fitting] -= size
    out.mkdir(parents=True, exist_ok=True)
    files = tuple(out / f"parcel-{i:02d}.zip" for i, found in enumerate(parcels) if found)
    for path, found in zip(files, (p for p in parcels if p), strict=True):
        with atomic.file(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, each in (pair for unit in found for pair in unit.items()):
                archive.write(each, name)
    return Packed(files, tuple(left))


def unpack(folder: Path, target: Store, runs: Path) -> Merged:
    """Merge what the parcels in a folder hold into a store, and put unmeasured trainings into `runs`; a training that
    is there already is kept as it is."""
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
        merged = merge(Store(Path(held)), target)
        new = [run for run in visible(Path(held, RUNS)) if not (runs / run.name).exists()]
        runs.mkdir(parents=True, exist_ok=True)
        for run in new:
            with atomic.folder(runs / run.name, RUN) as temporary:
                shutil.copytree(run, temporary, dirs_exist_ok=True)
        damaged = tuple(words.replace(f"{held}/", f"{folder}: ", 1) for words in merged.damaged)
        return replace(merged, trainings=len(new), damaged=damaged)
