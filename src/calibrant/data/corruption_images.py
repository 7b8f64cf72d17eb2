"""Corruptions as folders of images, in the layout of ImageNet-C: `FOLDER/TYPE/SEVERITY/CLASS/*.jpg`.

Also with a group in between, as its archives are named: `FOLDER/blur/defocus_blur/3/n01440764/….JPEG`. Every cell must
hold the same items (the same names of files in the same classes). Published images are cut to 224 × 224 already, so
they are scaled to the classifier's size and nothing is cut off. They are decoded batch by batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from calibrant.data.folder import SUFFIXES, ImageFolder
from calibrant.data.records import Data, Part, numbered
from calibrant.data.relabelled import relabelled
from calibrant.data.shifted import SAMPLED, CorruptionFolder
from calibrant.errors import FileError, InputError, unknown
from calibrant.files.listing import names, visible
from calibrant.types import Split


def corruption_folder(
    path: Path, classes: int | Sequence[str], shape: tuple[int, ...]
) -> CorruptionFolder | CorruptionImages:
    """Whichever of the two layouts a folder has. `classes` are the classifier's names, or how many there are."""
    if path.is_dir() and not visible(path, "*.npy") and type_folders(path):
        return CorruptionImages(path, None if isinstance(classes, int) else tuple(classes), shape)
    return CorruptionFolder(path, classes if isinstance(classes, int) else len(classes), shape)


def type_folders(path: Path) -> dict[str, Path]:
    """TYPE → its folder: one that holds folders 1 … 5, which hold folders."""
    levels = [*visible(path, "*/[1-5]"), *visible(path, "*/*/[1-5]")]
    found = {level.parent for level in levels if level.is_dir() and any(p.is_dir() for p in visible(level))}
    named: dict[str, Path] = {}
    for folder in sorted(found):
        other = named.setdefault(folder.name, folder)
        if other != folder:
            raise FileError(f"{other} and {folder} are one type by their names; rename one, or name the group's folder")
    return named


@dataclass(frozen=True)
class CorruptionImages:
    """Corruptions as images on disk; decoded when they are needed."""

    path: Path
    names: tuple[str, ...] | None  # of the classifier's classes; None: sub-folders that are numbers are labels
    shape: tuple[int, ...]

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(self._folders)

    @cached_property
    def _folders(self) -> Mapping[str, Path]:
        return type_folders(self.path)

    def severities(self, name: str) -> tuple[int, ...]:
        """Which severities of a type are there; all must show the same items."""
        if name not in self._folders:
            raise unknown(f"corruption in {self.path}", name, self.types)
        cells = [p for p in visible(self._folders[name], "[1-5]") if p.is_dir()]
        if name not in self._seen:
            for cell in cells:
                if listed(cell) != self._items:
                    said = f"not the same classes and files as {self._first}"
                    raise FileError(f"{cell}: {said}; every cell must show the same items")
            self._seen.add(name)
        return tuple(int(cell.name) for cell in cells)

    @cached_property
    def _seen(self) -> set[str]:
        return set()

    @cached_property
    def _first(self) -> Path:
        return next(p for p in visible(next(iter(self._folders.values())), "[1-5]") if p.is_dir())

    @cached_property
    def _items(self) -> bytes:
        return listed(self._first)

    def part(self, name: str, severity: int) -> Part:
        """The items of one type at one severity, in the order of their classes and names."""
        if (name, severity) not in self._last:
            self._last.clear()  # one at a time: ImageNet-C has five million files
            self._last[name, severity] = self._read(name, severity)
        return self._last[name, severity]

    @cached_property
    def _last(self) -> dict[tuple[str, int], Part]:
        return {}

    def content(self, types: Sequence[str]) -> str:
        """Hash of the files' names and of some sizes: tells it from another of its name."""
        digest = hashlib.sha256(self._items)
        for name in types:
            for severity in self.severities(name):
                files = visible(self._folders[name] / str(severity), "*/*")
                sizes = [p.stat().st_size for p in files[:: max(1, len(files) // SAMPLED)]]
                digest.update(f"{name} {severity} {sizes}".encode())
        return digest.hexdigest()[:16]

    def _read(self, name: str, severity: int) -> Part:
        if severity not in self.severities(name):
            raise InputError(f"{self._folders[name]} has no folder {severity}")
        if len(self.shape) != 3 or self.shape[0] not in (1, 3) or self.shape[1] != self.shape[2]:
            raise InputError(f"{self.path}: folders of images are for square images, not {tuple(self.shape)}")
        channels, size, _ = self.shape
        folder = ImageFolder(self._folders[name] / str(severity), size, size, channels)
        part, names = folder.part(Split.TEST), self.names
        if names is None and all(word.isdigit() for word in folder.classes):
            names = numbered(1 + max(map(int, folder.classes)))
        if names is None:
            return part
        return relabelled(Data(str(folder.folder), {Split.TEST: part}, folder.classes, self.shape), names)["test"]


def listed(cell: Path) -> bytes:
    """Hash of the classes of a cell and of the images' names in them, whatever their suffixes."""
    digest = hashlib.sha256()
    for name in (p.name for p in visible(cell) if p.is_dir()):
        words = (word.rpartition(".") for word in names(cell / name))
        stems = sorted(stem for stem, dot, suffix in words if f"{dot}{suffix}".lower() in SUFFIXES)
        digest.update("\n".join([name, *stems, ""]).encode())
    return digest.digest()
