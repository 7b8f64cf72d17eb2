"""Where results may be written: never over an input, and never over something that calibrant did not write.

A folder is replaced only by an output of the same kind, and only if it holds nothing else. Folders that grow (runs,
stress cells) are resumed only by the same kind of output. The files in a folder tell its kind.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from calibrant.errors import FileError
from calibrant.files.paths import everything, visible

LONGEST = 255 - len(".calibrant-12345678.")
"""Bytes in a name: a file system allows 255, and the temporary name is longer than that of its target."""


@dataclass(frozen=True)
class Kind:
    """A kind of output. `known` recognises it by its content; `entries` are the names in a folder of this kind."""

    called: str  # in messages, with its article
    known: Callable[[Path], bool]
    entries: str = ""  # a regular expression; a file has none
    grows: bool = False  # it is resumed in place, never replaced

    @property
    def word(self) -> str:
        return "folder" if self.entries else "file"


def _says(path: Path, key: str, value: str) -> bool:
    try:
        found = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get(key) == value


def _opening(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(4096).lstrip()


def _our_parts(folder: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = visible(folder, "*.parquet")
    try:
        return bool(parts) and all(b"calibrant.origin" in (pq.read_schema(part).metadata or ()) for part in parts)
    except (OSError, pa.ArrowException):
        return False


def _begun_run(folder: Path) -> bool:
    """A run has a recipe; before it is written, there may be a log, or the points of a search."""
    return (folder / "recipe.json").is_file() or {p.name for p in visible(folder)} <= {"log.jsonl", "points"}


FILE = Kind("a file", lambda path: True)
PAGE = Kind("an HTML page", lambda path: _opening(path).lower().startswith(b"<!doctype html"))
RULE_FORMULA = Kind("an exported rule", lambda path: _says(path, "format", "calibrant rule form"))
FORMULA = Kind("an exported map", lambda path: _says(path, "format", "calibrant closed form"))
MAP = Kind("a fitted map", lambda f: _says(f / "map.json", "format", "calibrant map"), r"map\.(json|safetensors)")
RULE = Kind(
    "a decision rule", lambda f: _says(f / "rule.json", "format", "calibrant rule"), r"rule\.(json|safetensors)"
)
ENSEMBLE = Kind("an ensemble", lambda f: _says(f / "ensemble.json", "ensemble", "pep"), r"ensemble\.json")
PARTS = Kind("predictions in parts", _our_parts, r"part-\d{6}\.parquet")
RUN = Kind(
    "a training run",
    _begun_run,
    r"(recipe|data|environment|metrics|selection|targets|levels)\.json|log\.jsonl|(validation|calibration|test)\.npz"
    r"|report\.html|checkpoint|epochs|points|probe|robustness|tensorboard|vanilla",
    grows=True,
)
STRESS = Kind("a stress run", lambda f: (f / "settings.json").is_file(), r"(settings|stress)\.json|cells", grows=True)
DEMO = Kind(
    "the output of `calibrant demo`",
    lambda f: bool(visible(f, "runs/cross_entropy-*")),
    r"runs|map|(calibration|test|calibrated|focal|smoothing)\.npz|report\.html",
    grows=True,
)
PROBED = (
    r"probe\.json|report\.html|hessian|landscape|sharpness|hardness|variance|fourier|neighbours|signs|pep_effect|"
    r"overfitting|attack|robustness"
)
PROBE = Kind(
    "the output of `calibrant probe`",
    lambda f: all(re.fullmatch(PROBED, p.name) for p in visible(f)),
    PROBED,
    grows=True,
)
FOLDERS = (MAP, RULE, ENSEMBLE, PARTS, RUN, STRESS, DEMO, PROBE)


def check(*outputs: tuple[Path | None, Kind], inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse outputs that may not be written, before any work is done. Every verb calls this.

    Inputs are paths, or words of the command line that may contain one (`package.module:factory@WEIGHTS`).
    """
    wanted = [(path, kind) for path, kind in outputs if path is not None]
    words = [str(text) for text in inputs if text is not None]
    sources = [Path(p) for text in words for p in {text, text.rpartition("@")[2]} if os.path.exists(p)]
    for i, (path, kind) in enumerate(wanted):
        for source in sources:
            _check_input(path, kind, source)
        for other, _ in wanted[:i]:
            if _same(path, other):
                raise FileError(f"{path} is named for two outputs; name another {kind.word} for one of them")
        check_target(path, kind)


def check_target(target: Path, kind: Kind) -> None:
    """Refuse a target that cannot be written, or that holds something else. This decides what may be replaced."""
    if target.name in ("", "..") and not kind.grows:
        raise FileError(f"{target} cannot be replaced by a {kind.word} that is written; name a new {kind.word}")
    if len(os.fsencode(target.name)) > LONGEST:
        raise FileError(
            f"cannot write {target.name[:40]}…: the name has more than {LONGEST} bytes; choose a shorter one"
        )
    if kind.grows:
        check_place(target, f"keep {kind.called} in")
    else:
        _check_parent(target, kind)
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror}; name another {kind.word}") from error
    if kind.entries and not kind.grows and target.is_symlink():
        raise FileError(f"{target} is a link to {os.path.realpath(target)}; name that folder itself")
    if mode is None:
        return
    if kind.entries:
        _check_folder(target, kind, mode)
    elif stat.S_ISDIR(mode):
        raise FileError(f"{target} is a folder; name a file to write")
    elif not stat.S_ISREG(mode):
        raise FileError(f"{target} is a device or a pipe; name a file to write")
    elif target.stat().st_size and not kind.known(target):
        raise FileError(f"{target} exists and is not {kind.called}, so it is not replaced; name a new file")


def check_place(path: Path, purpose: str) -> None:
    """Refuse a path that is not a folder, cannot be created or is not writable, before any work is done."""
    nearest = _nearest(path)
    if not nearest.is_dir():
        raise FileError(f"{nearest} is a file; name a folder to {purpose}")
    if not is_writable(nearest):
        raise FileError(f"no permission to write in {nearest}; name another folder to {purpose}")


def is_writable(path: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, may be written to."""
    nearest = _nearest(path)
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _nearest(path: Path) -> Path:
    """The folder, or the nearest one above it that exists and may be read."""
    for place in (path, *path.absolute().parents):
        try:
            if place.exists():
                return place
        except PermissionError:  # the folder above may not be read
            continue
    return Path(path.absolute().anchor)


def kind_of(folder: Path) -> Kind | None:
    """The kind of output in this folder; None if calibrant did not write it."""
    return next((kind for kind in FOLDERS if visible(folder) and kind.known(folder)), None)


def _check_folder(target: Path, kind: Kind, mode: int) -> None:
    if not stat.S_ISDIR(mode):
        raise FileError(f"{target} is a file; name a folder to write")
    held = [p.name for p in visible(target)] if kind.grows else everything(target)
    if not held:
        return
    found = kind if kind.known(target) else kind_of(target)
    if found is not None and found is not kind:
        raise FileError(f"{target} holds {found.called}, not {kind.called}; name another folder")
    others = [name for name in held if not re.fullmatch(kind.entries, name)] or held
    if found is None:
        raise FileError(f"{target} holds {others[0]} and is not {kind.called}; name a new folder")
    if not kind.grows and others is not held:
        raise FileError(f"{target} holds {others[0]} beside {kind.called}, which would be lost; name another folder")


def _check_input(path: Path, kind: Kind, source: Path) -> None:
    """Refuse an output that is an input, contains one, or would become part of an input folder."""
    if _same(path, source):
        if kind.grows:
            return
        raise FileError(f"{path} is also an input; name another {kind.word} to write")
    out, read = Path(os.path.realpath(path)), Path(os.path.realpath(source))
    if read.is_relative_to(out) and not kind.grows:
        raise FileError(f"{path} holds the input {source}; name another {kind.word} to write")
    if not (source.is_dir() and out.is_relative_to(read)):
        return
    owner = kind_of(source)
    first = out.relative_to(read).parts[0]
    own = re.fullmatch(owner.entries, first) if owner else kind.entries or path.suffix == ".parquet"
    if own:
        raise FileError(f"{path} would become part of the input {source}; name another {kind.word} to write")


def _same(a: Path, b: Path) -> bool:
    if os.path.exists(a) and os.path.exists(b):
        return os.path.samefile(a, b)
    return os.path.realpath(a) == os.path.realpath(b)


def _check_parent(target: Path, kind: Kind) -> None:
    if not os.path.isdir(target.parent):
        why = f"the folder {target.parent} does not exist"
        raise FileError(f"cannot write {target}: {why}; name a {kind.word} in a folder that exists")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise FileError(f"cannot write {target}: no permission to write in {target.parent}")
