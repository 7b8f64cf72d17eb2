"""The raw images of every cell, batch by batch on the device: from memory, from a folder, or corrupted on the fly.

Images are made one batch at a time. Randomness depends on an item's index in its data set, so a cell does not depend on
the batch size, nor an item on which others are chosen (`--limit`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from calibrant.data.corruption_folder import CorruptionFolder, CorruptionImages
from calibrant.data.image_folder import ImageFolder
from calibrant.data.ood import OODImages
from calibrant.data.records import Part
from calibrant.diagnostics.stress.cells import Cell
from calibrant.errors import InputError
from calibrant.shifts import PERTURBATIONS, corrupt, perturb
from calibrant.shifts.corruption import check_images
from calibrant.shifts.frequency import FREQUENCIES, FrequencyNoise
from calibrant.types import Split


@dataclass(frozen=True)
class Material:
    """Test items, calibration items, and the source of the shifted ones."""

    part: Part
    shape: tuple[int, ...]
    calibration: Part | None = None
    corruptions: CorruptionFolder | CorruptionImages | None = None  # None: corrupted here
    outside: Callable[[str], OODImages] | None = None
    natural: Mapping[str, Part] = field(default_factory=dict)
    seed: int = 0
    batch: int = 500
    sequence: int | None = None  # frames of a perturbation; None: as many as published
    limit: int | None = None
    device: torch.device | str = "cpu"
    made: dict[str, Any] = field(default_factory=dict)  # foreign sets that were loaded

    def batches(self, cell: Cell) -> Iterator[Tensor]:
        """Yield raw images [n, C, H, W], uint8 or floats in [0, 1]."""
        if cell.kind == "corruption" and self.corruptions is None:
            for x, index in self._raw(self.part):
                yield corrupt(x, cell.name, cell.severity, self.seed, index=index)
            return
        if cell.kind == "frequency":
            noise = FrequencyNoise(FREQUENCIES[cell.severity - 1])
            for x, index in self._raw(self.part):
                yield noise(x, self.seed, index=index)
            return
        if cell.kind == "perturbation":
            frames = self.frames(cell)
            for x, index in self._raw(self.part, max(1, self.batch // frames)):
                made = perturb(x, cell.name, frames, self.seed, index=index)
                yield made.transpose(0, 1).flatten(0, 1)
            return
        for x, _ in self._raw(self._part(cell)):
            yield x

    def labels(self, cell: Cell) -> Tensor | None:
        """Return the labels of a cell; foreign items have none."""
        return None if cell.kind == "outside" else self._part(cell).y

    def frames(self, cell: Cell) -> int:
        """Return the number of images per item."""
        return self.sequence or PERTURBATIONS[cell.name].published if cell.kind == "perturbation" else 1

    def remark(self, cell: Cell) -> str:
        """Return what was done to foreign images to make them fit."""
        return self.foreign(cell.name).note if cell.kind == "outside" else ""

    def _part(self, cell: Cell) -> Part:
        if cell.kind == "calibration":
            assert self.calibration is not None
            if self.calibration.items is None:
                self._fits(self.calibration.x, cell.title)
            return self.calibration
        if cell.kind == "natural":
            found = self.natural[cell.name]
            if found.items is None:
                self._fits(found.x, cell.title)
            return limited(found, self.limit)
        if cell.kind == "outside":
            x = self.foreign(cell.name).x
            return Part(x, torch.zeros(len(x), dtype=torch.long), torch.arange(len(x)))
        if cell.kind == "corruption" and self.corruptions is not None:
            part = self.corruptions.part(cell.name, cell.severity)
            if part.items is None:
                self._fits(part.x, cell.title)
            return limited(part, self.limit)
        return self.part

    def foreign(self, name: str) -> OODImages:
        """Return a foreign set; it is loaded once."""
        assert self.outside is not None
        if name not in self.made:
            self.made[name] = self.outside(name)
        found: OODImages = self.made[name]
        self._fits(found.x, name)
        return found

    def _fits(self, x: Tensor, title: str) -> None:
        if tuple(x.shape[1:]) != tuple(self.shape):
            raise InputError(f"{title}: images are {tuple(x.shape[1:])}, the classifier's are {tuple(self.shape)}")

    def _raw(self, part: Part, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (images, their indices) on the device."""
        step = size or self.batch
        for start in range(0, part.n, step):
            span = slice(start, start + step)
            yield part.inputs(span).to(self.device), part.index[span].to(self.device)


def images_only(part: Part, name: str) -> Part:
    """Return the part; refuse it unless its items are images with one label each."""
    if part.y.ndim != 1 or (part.items is None and part.x.ndim != 4):
        raise InputError(f"{name}: stress is for images with one class each; these items are {tuple(part.x.shape[1:])}")
    return part


def content(part: Part) -> str:
    """Return a hash of labels and images (for files: names and sizes), to tell other items of the same name."""
    if isinstance(part.items, ImageFolder):
        files = [part.items.files[int(i)][0] for i in part.index]
        return digest(part.y, "\n".join(f"{p.name} {p.stat().st_size}" for p in files))
    return digest(part.y) if part.items is not None else digest(part.y, part.x)


def digest(*values: Tensor | str) -> str:
    """Return a short hash of tensors and texts."""
    total = hashlib.sha256()
    for value in values:
        if isinstance(value, str):
            total.update(value.encode())
        else:
            total.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]


def limited(part: Part, limit: int | None) -> Part:
    """Return at most `limit` items, spread evenly over the part, because folders are sorted by class."""
    if limit is None or part.n <= limit:
        return part
    return part.take(torch.arange(limit) * part.n // limit, part.split)


def of_arrays(images: Any, labels: Any, split: Split = Split.TEST) -> Part:
    """Return a user's own images [N, C, H, W] (uint8, or floats in [0, 1]) and labels as a part."""
    x, y = torch.as_tensor(images), torch.as_tensor(labels)
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim != 4 or len(x) != len(y):
        raise InputError(f"images of shape {tuple(x.shape)} and {len(y)} labels; expected [N, C, H, W] and [N]")
    if not len(y):
        raise InputError("there are no images; give at least one")
    if y.is_floating_point():
        raise InputError("labels must be whole numbers, one class each")
    check_images(x)
    return replace(Part(x.cpu(), y.long().cpu(), torch.arange(len(y))), split=split)
