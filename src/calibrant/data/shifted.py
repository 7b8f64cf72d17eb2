"""Shifted sets that a user hands in: a folder of corruptions in the layout of CIFAR-C, or one set of images and labels.

A folder holds `TYPE.npy` (uint8 [S·N, H, W, C] or [S·N, H, W]: S severities of the same N items in turn) for each type
and `labels.npy` (N labels, or S·N with the same ones in every block; of S·N labels, S is 5 as published).
One set is a `.npz` with `images` and `labels`, or `NAME.npy` with `NAME_labels.npy` or `labels.npy` beside it.
Where maps of labels can be used, its labels may be [N, H, W].
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.data.label_maps import below, marked
from calibrant.data.new_tests import read_npy
from calibrant.data.packed import arrays, images
from calibrant.data.records import Part
from calibrant.errors import FileError, InputError, unknown
from calibrant.files.listing import visible
from calibrant.types import Split

SEVERITIES = 5
SAMPLED = 50  # images of a file that its content is told by; a published file has 50,000
IMAGES, LABELS = ("images", "x", "data"), ("labels", "y", "label")


@dataclass(frozen=True)
class CorruptionFolder:
    """Corruptions on disk; files are mapped, so that a cell reads its own block alone."""

    path: Path
    classes: int  # labels must lie below
    shape: tuple[int, ...] | None = None  # [C, H, W] that images must have

    @cached_property
    def types(self) -> tuple[str, ...]:
        if not self.path.is_dir():
            raise FileError(f"{self.path}: no such folder of corruptions")
        found = tuple(sorted(p.stem for p in visible(self.path, "*.npy") if p.stem != "labels"))
        if not found:
            said = "holds neither TYPE.npy with labels.npy nor TYPE/SEVERITY/CLASS/*.jpg"
            raise FileError(f"{self.path}: {said}; hand in one of these layouts")
        return found

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        path = self.path / "labels.npy"
        if not path.is_file():
            raise FileError(f"{path}: not there; the folder needs the labels of its items")
        return checked_labels(read_npy(path), self.classes, path)

    def check(self, name: str) -> tuple[NDArray[np.generic], int]:
        """One type's images, still on disk, and how many severities they hold."""
        if name not in self.types:
            raise unknown(f"corruption in {self.path}", name, self.types)
        path = self.path / f"{name}.npy"
        x = checked_images(read_npy(path, mapped=True), path)
        edges = (x.shape[3] if x.ndim == 4 else 1, *x.shape[1:3])
        if self.shape is not None and edges != tuple(self.shape):
            raise FileError(f"{path}: images are {edges}, the classifier's are {tuple(self.shape)}")
        n = len(self.labels)
        if len(x) % n:
            raise FileError(f"{path}: {len(x)} images do not come in whole blocks of the {n} labels beside them")
        if len(x) > n:
            return x, len(x) // n
        if n % SEVERITIES:
            raise FileError(f"{path}: {n} images are not five equal severities; hand one set in as --natural FILE")
        blocks = self.labels.reshape(SEVERITIES, -1)
        if (blocks != blocks[0]).any():
            raise FileError(
                f"{self.path / 'labels.npy'}: the five blocks have different labels, so they are not five severities "
                "of the same items; hand one set in as --natural FILE, or the labels of one severity alone"
            )
        return x, SEVERITIES

    def severities(self, name: str) -> tuple[int, ...]:
        """Which severities of a type are there."""
        return tuple(range(1, self.check(name)[1] + 1))

    def part(self, name: str, severity: int) -> Part:
        """The items of one type at one severity."""
        x, y = self.cell(name, severity)
        return Part(x, y, torch.arange(len(y)), Split.TEST)

    def content(self, types: Sequence[str]) -> str:
        """Hash of the labels, of each file's size and of some of its images: tells it from another of its name."""
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
        return images(np.asarray(x[(severity - 1) * n : severity * n])), torch.from_numpy(self.labels[:n])


def read_set(path: Path, classes: int, *, maps: bool = False, ignore_index: int | None = None) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, C, H, W] and labels of one set, [N]; with `maps` also [N, H, W], −1 where a pixel has none."""
    if not path.is_file():
        raise FileError(f"{path}: no such file of images and labels (.npz, or .npy with labels beside it)")
    if path.suffix == ".npz":
        held = arrays(path, (), only=IMAGES + LABELS)
        x, y = (_first(held, names, path) for names in (IMAGES, LABELS))
    elif path.suffix == ".npy":
        beside = [path.with_name(f"{path.stem}_labels.npy"), path.with_name("labels.npy")]
        beside.insert(0, path.with_name(f"{path.stem.removesuffix('_data')}_labels.npy"))
        x = read_npy(path)
        labels = next((p for p in beside if p.is_file() and p != path), None)
        if labels is None:
            raise FileError(f"{path}: its labels are missing; put them beside it as {beside[1].name}")
        y = read_npy(labels)
    else:
        raise FileError(f"{path}: {path.suffix or 'a file without suffix'} is no set of images; use .npz or .npy")
    x = checked_images(_channels_last(x), path)
    y = y[:, 0] if maps and y.ndim == 4 and y.shape[1] == 1 else y
    y = checked_maps(y, classes, path, ignore_index) if maps and y.ndim == 3 else checked_labels(y, classes, path)
    if len(x) != len(y):
        raise FileError(f"{path}: {len(x)} images but {len(y)} labels; they must be of equal length")
    return images(x), torch.from_numpy(y)


def read_images(path: Path) -> Tensor:
    """Images uint8 [N, C, H, W] of a file; labels are not asked for."""
    if not path.is_file():
        raise FileError(f"{path}: no such file of images (.npz or .npy)")
    x = read_npy(path) if path.suffix == ".npy" else _first(arrays(path, (), only=IMAGES), IMAGES, path)
    return images(checked_images(_channels_last(x), path))


def _channels_last(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """torch's [N, C, H, W] as [N, H, W, C], when it cannot be another order."""
    return x.transpose(0, 2, 3, 1) if x.ndim == 4 and x.shape[-1] not in (1, 3) and x.shape[1] in (1, 3) else x


def _first(held: dict[str, NDArray[np.generic]], names: tuple[str, ...], path: Path) -> NDArray[np.generic]:
    for name in names:
        if name in held:
            return held[name]
    raise FileError(
        f"{path}: has no array {names[0]!r} (nor {', '.join(names[1:])}); it holds {', '.join(held) or 'none'}"
    )


def checked_images(x: NDArray[np.generic], path: Path) -> NDArray[np.generic]:
    if x.dtype != np.uint8:
        raise FileError(f"{path}: images are {x.dtype}; save bytes 0 … 255 (uint8)")
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[-1] not in (1, 3)):
        raise FileError(f"{path}: images of shape {x.shape}; expected [N, H, W, C] with 1 or 3 channels, or [N, H, W]")
    if len(x) == 0:
        raise FileError(f"{path}: holds no images")
    return x


def checked_maps(
    y: NDArray[np.generic], classes: int, path: Path, ignore_index: int | None = None
) -> NDArray[np.int64]:
    if y.dtype.kind not in "iub" or y.size == 0:
        raise FileError(f"{path}: maps of labels are {y.dtype} of shape {y.shape}; expected whole numbers [N, H, W]")
    found = marked(torch.from_numpy(signed(y, path)), ignore_index, str(path))
    below(found, classes, str(path), "the model")
    labels: NDArray[np.int64] = found.numpy()
    return labels


def signed(y: NDArray[np.generic], path: Path) -> NDArray[np.int64]:
    """As 64 bits with a sign, in which the largest unsigned numbers would become marks of what has no class."""
    if y.dtype.kind == "u" and y.size and int(y.max()) > np.iinfo(np.int64).max:
        raise FileError(f"{path}: label {int(y.max())}; classes are 0, 1, …")
    out: NDArray[np.int64] = y.astype(np.int64)
    return out


def checked_labels(y: NDArray[np.generic], classes: int, path: Path) -> NDArray[np.int64]:
    if y.ndim == 3:
        raise FileError(
            f"{path}: labels are maps of shape {y.shape}, and this needs one class an item [N]; "
            "maps are for `calibrant predict` (--class-axis 1) and `calibrant train`"
        )
    if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1 or len(y) == 0:
        raise FileError(f"{path}: labels are {y.dtype} of shape {y.shape}; expected whole numbers [N]")
    labels = signed(y, path)
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        row = int(wrong[0])
        raise FileError(f"{path}: label {labels[row]} in row {row}; the classifier's classes are 0 … {classes - 1}")
    return labels
