"""Folders of corrupted images, in the layout of CIFAR-C (arrays) or of ImageNet-C (image files).

Arrays: `TYPE.npy` for each type (uint8 [S·N, H, W, C] or [S·N, H, W]: S severities of the same N items, one after the
other) and `labels.npy` (N labels, or S·N with the same ones in every block; with S·N labels, S is 5 as published).

Image files: `FOLDER/TYPE/SEVERITY/CLASS/*.jpg`, also with a group in between, as in the published archives:
`FOLDER/blur/defocus_blur/3/n01440764/….JPEG`. Every cell must hold the same items (the same file names in the same
classes). Published images are already cut to 224 × 224, so they are scaled to the classifier's size and nothing is cut
off. They are decoded batch by batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.data.image_arrays import check_images, check_labels, to_images
from calibrant.data.image_folder import SUFFIXES, ImageFolder, channels_and_size, match_classes
from calibrant.data.records import Data, Part, numbered_classes
from calibrant.errors import FileError, InputError, unknown
from calibrant.files.npz import read_npy
from calibrant.files.paths import names, visible
from calibrant.types import Split

SEVERITIES = 5
SAMPLED = 50  # images of a file (or files of a cell) that the hash of its content covers; CIFAR-C has 50,000


def corruption_folder(
    path: Path, classes: int | Sequence[str], shape: tuple[int, ...]
) -> CorruptionFolder | CorruptionImages:
    """The folder, in the layout that it has. `classes` are the names of the classifier's classes, or their number."""
    if path.is_dir() and not visible(path, "*.npy") and type_folders(path):
        return CorruptionImages(path, None if isinstance(classes, int) else tuple(classes), shape)
    return CorruptionFolder(path, classes if isinstance(classes, int) else len(classes), shape)


def type_folders(path: Path) -> dict[str, Path]:
    """Return {type: its folder}. A type's folder holds folders named 1 … 5, which hold folders of classes."""
    levels = [*visible(path, "*/[1-5]"), *visible(path, "*/*/[1-5]")]
    found = {level.parent for level in levels if level.is_dir() and any(p.is_dir() for p in visible(level))}
    named: dict[str, Path] = {}
    for folder in sorted(found):
        other = named.setdefault(folder.name, folder)
        if other != folder:
            raise FileError(
                f"{other} and {folder} have the same type name; rename one, or pass the folder of one group"
            )
    return named


@dataclass(frozen=True)
class CorruptionFolder:
    """Corruptions as arrays. Files are memory-mapped, so a cell reads only its own block."""

    path: Path
    classes: int  # how many; labels must be smaller
    shape: tuple[int, ...] | None = None  # [C, H, W] of the classifier's images

    @cached_property
    def types(self) -> tuple[str, ...]:
        if not self.path.is_dir():
            raise FileError(f"{self.path}: no such folder of corruptions")
        found = tuple(sorted(p.stem for p in visible(self.path, "*.npy") if p.stem != "labels"))
        if not found:
            raise FileError(
                f"{self.path}: holds neither TYPE.npy with labels.npy nor TYPE/SEVERITY/CLASS/*.jpg; "
                "use one of these layouts"
            )
        return found

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        path = self.path / "labels.npy"
        if not path.is_file():
            raise FileError(f"{path}: not found; the folder needs the labels of its items")
        return check_labels(read_npy(path), self.classes, path)

    def check(self, name: str) -> tuple[NDArray[np.generic], int]:
        """The images of one type, still on disk, and the number of severities."""
        if name not in self.types:
            raise unknown(f"corruption in {self.path}", name, self.types)
        path = self.path / f"{name}.npy"
        x = check_images(read_npy(path, mapped=True), path)
        edges = (x.shape[3] if x.ndim == 4 else 1, *x.shape[1:3])
        if self.shape is not None and edges != tuple(self.shape):
            raise FileError(f"{path}: images are {edges}, the classifier's are {tuple(self.shape)}")
        n = len(self.labels)
        if len(x) % n:
            raise FileError(f"{path}: {len(x)} images do not come in whole blocks of the {n} labels beside them")
        if len(x) > n:
            return x, len(x) // n
        if n % SEVERITIES:
            raise FileError(f"{path}: {n} images are not five equal severities; pass a single set with --natural FILE")
        blocks = self.labels.reshape(SEVERITIES, -1)
        if (blocks != blocks[0]).any():
            raise FileError(
                f"{self.path / 'labels.npy'}: the five blocks have different labels, so they are not five severities "
                "of the same items; pass a single set with --natural FILE, or give the labels of one severity only"
            )
        return x, SEVERITIES

    def severities(self, name: str) -> tuple[int, ...]:
        """The severities of a type that are there."""
        return tuple(range(1, self.check(name)[1] + 1))

    def part(self, name: str, severity: int) -> Part:
        """The items of one type at one severity."""
        return Part.of(*self.cell(name, severity), Split.TEST)

    def content(self, types: Sequence[str]) -> str:
        """Hash of the labels, of each file's size and of some of its images, to recognise the same content."""
        digest = hashlib.sha256(self.labels.tobytes())
        for name in types:
            x = read_npy(self.path / f"{name}.npy", mapped=True)
            digest.update(f"{name} {x.shape}".encode())
            digest.update(np.ascontiguousarray(x[:: max(1, len(x) // SAMPLED)]).tobytes())
        return digest.hexdigest()[:16]

    def cell(self, name: str, severity: int) -> tuple[Tensor, Tensor]:
        """Images uint8 [N, C, H, W] and labels of one type at one severity (1 …)."""
        x, severities = self.check(name)
        if not 1 <= severity <= severities:
            raise InputError(f"{self.path / name}.npy has severities 1 … {severities}, not {severity}")
        n = len(x) // severities
        return to_images(np.asarray(x[(severity - 1) * n : severity * n])), torch.from_numpy(self.labels[:n])


@dataclass(frozen=True)
class CorruptionImages:
    """Corruptions as image files, decoded when needed."""

    path: Path
    names: tuple[str, ...] | None  # of the classifier's classes; None: a sub-folder's number is its label
    shape: tuple[int, ...]

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(self._folders)

    @cached_property
    def _folders(self) -> Mapping[str, Path]:
        return type_folders(self.path)

    def severities(self, name: str) -> tuple[int, ...]:
        """The severities of a type that are there; all must have the same items."""
        if name not in self._folders:
            raise unknown(f"corruption in {self.path}", name, self.types)
        cells = [p for p in visible(self._folders[name], "[1-5]") if p.is_dir()]
        if name not in self._seen:
            for cell in cells:
                if content_hash(cell) != self._items:
                    raise FileError(
                        f"{cell}: not the same classes and files as {self._first}; every cell must have the same items"
                    )
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
        return content_hash(self._first)

    def part(self, name: str, severity: int) -> Part:
        """The items of one type at one severity, sorted by class and name."""
        if (name, severity) not in self._last:
            self._last.clear()  # keep one at a time: ImageNet-C has five million files
            self._last[name, severity] = self._read(name, severity)
        return self._last[name, severity]

    @cached_property
    def _last(self) -> dict[tuple[str, int], Part]:
        return {}

    def content(self, types: Sequence[str]) -> str:
        """Hash of the file names and of some sizes, to recognise the same content."""
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
        channels, size = channels_and_size(self.path, self.shape)
        folder = ImageFolder(self._folders[name] / str(severity), size, size, channels)
        part, names = folder.part(Split.TEST), self.names
        if names is None and all(word.isdigit() for word in folder.classes):
            names = numbered_classes(1 + max(map(int, folder.classes)))
        if names is None:
            return part
        return match_classes(Data(str(folder.folder), {Split.TEST: part}, folder.classes, self.shape), names)["test"]


def content_hash(cell: Path) -> bytes:
    """Hash of the classes of a cell and of the image names in them, without their suffixes."""
    digest = hashlib.sha256()
    for name in (p.name for p in visible(cell) if p.is_dir()):
        words = (word.rpartition(".") for word in names(cell / name))
        stems = sorted(stem for stem, dot, suffix in words if f"{dot}{suffix}".lower() in SUFFIXES)
        digest.update("\n".join([name, *stems, ""]).encode())
    return digest.digest()
