"""Out-of-distribution (OOD) images for a classifier: held-out classes, another data set, photographs, noise.

All images are brought to the shape of the classifier's own: colour to grey by luma (Rec. 601), grey to colour by
repetition, another size by antialiased bilinear interpolation. A note says what was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.data import DATASETS, data_root, load
from calibrant.data.image_arrays import read_images
from calibrant.data.records import Data
from calibrant.data.subsets import complement, split_name
from calibrant.errors import InputError
from calibrant.types import Split

LUMA = (0.299, 0.587, 0.114)
USUAL: dict[str, tuple[str, ...]] = {
    "cifar10": ("cifar100",),
    "cifar100": ("cifar10",),
    "mnist": ("fashion_mnist",),
    "fashion_mnist": ("mnist",),
    "svhn": ("cifar10",),
}
"""Data set → the data sets that are out of distribution for it (AR §5.5: CIFAR-100 for CIFAR-10)."""


@dataclass(frozen=True)
class OODImages:
    """OOD images, uint8 [N, C, H, W], and a note of how they were brought to that shape."""

    name: str
    x: Tensor
    note: str


def usual_ood(data: Data, root: str | Path | None) -> tuple[list[str], list[str]]:
    """Return (names of OOD sets for this data set, why others are left out).

    Held-out classes come first, then other data sets, then generated images."""
    base, chosen = split_name(data.name)
    names, notes = [], []
    if chosen is not None and base in DATASETS:
        held = complement(data.name, load(base, root=root).classes)
        names += [held] if held else []
    for other in USUAL.get(base, ()):
        if has_files(other, root):
            names.append(other)
        else:
            notes.append(f"{other} is left out: its files are not under the data root")
    return names + list(GENERATED), notes


def has_files(name: str, root: str | Path | None) -> bool:
    """Whether all files of one of the data set's layouts are there."""
    under = data_root(root)
    return any(
        all(under is not None and (under / file).exists() for file in layout.files) for layout in DATASETS[name].layouts
    )


def ood_images(
    name: str, shape: Sequence[int], *, n: int, root: str | Path | None = None, seed: int = 0, split: str = "test"
) -> OODImages:
    """At most `n` OOD images of this shape [C, H, W]: from `GENERATED`, a data set's `split`, a file or a folder."""
    if len(shape) != 3:
        raise InputError(f"out-of-distribution images are for classifiers of images [C, H, W], not of {tuple(shape)}")
    if name in GENERATED:
        return OODImages(name, *GENERATED[name](tuple(shape), n, seed))
    if Path(name).suffix in (".npz", ".npy"):
        return OODImages(name, *fit_shape(read_images(Path(name))[:n], shape))
    if Path(name).is_dir():
        return _decoded(name, shape, n)
    data = load(name, root=root)
    if Split(split) not in data.splits:
        raise InputError(f"{name} has no {split} part to serve as out-of-distribution items")
    part = data[split]
    if part.items is not None or part.x.ndim != 4:
        raise InputError(f"{name} is not a set of equal-sized images, so it cannot serve as out-of-distribution items")
    x = part.x[:n]
    return OODImages(name, *fit_shape(x if x.dtype == torch.uint8 else as_bytes(x), shape))


def _decoded(name: str, shape: Sequence[int], n: int) -> OODImages:
    """Images of a folder, FOLDER/CLASS/*.jpg, spread over its classes."""
    parts = load(name, shape=tuple(shape)).splits
    part = parts.get(Split.TEST) or next(iter(parts.values()))
    chosen = torch.arange(min(n, part.n)) * part.n // min(n, part.n)
    return OODImages(name, *fit_shape(part.inputs(chosen), shape))


def fit_shape(x: Tensor, shape: Sequence[int]) -> tuple[Tensor, str]:
    """Return (uint8 images of this shape, a note of what was done to them)."""
    notes = []
    channels, height, width = shape
    if x.shape[1] == 3 and channels == 1:
        luma = torch.tensor(LUMA, device=x.device)[:, None, None]
        x = (x.float() * luma).sum(1, keepdim=True).round().to(torch.uint8)
        notes.append("made grey by luma")
    elif x.shape[1] == 1 and channels == 3:
        x = x.expand(-1, 3, -1, -1)
        notes.append("grey repeated in three channels")
    elif x.shape[1] != channels:
        raise InputError(f"images of {x.shape[1]} channels cannot be compared with images of {channels}")
    if tuple(x.shape[2:]) != (height, width):
        notes.append(f"scaled from {x.shape[2]}×{x.shape[3]} to {height}×{width} (antialiased bilinear)")
        chunks = [
            F.interpolate(part.float(), (height, width), mode="bilinear", antialias=True).round().clamp(0, 255)
            for part in torch.split(x, 2048)
        ]
        x = torch.cat(chunks).to(torch.uint8)
    return x.contiguous(), "; ".join(notes) or "as it is"


def as_bytes(x: Tensor) -> Tensor:
    """Floats in [0, 1], clipped, as bytes."""
    return (x.clamp(0, 1) * 255).round().to(torch.uint8)


def _uniform(shape: tuple[int, ...], n: int, seed: int) -> tuple[Tensor, str]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, *shape), generator=generator, dtype=torch.int16).to(torch.uint8)
    return x, "every byte uniform"


def _gaussian(shape: tuple[int, ...], n: int, seed: int) -> tuple[Tensor, str]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((n, *shape), generator=generator) * 0.25 + 0.5
    return as_bytes(x), "mean 0.5, deviation 0.25 of full scale, clipped"


def _photographs(shape: tuple[int, ...], n: int, seed: int) -> tuple[Tensor, str]:
    """Random square crops, a third to all of the height, of the two photographs that come with scikit-learn."""
    from sklearn.datasets import load_sample_images

    generator = torch.Generator().manual_seed(seed)
    pictures = [torch.from_numpy(np.array(p)).permute(2, 0, 1) for p in load_sample_images().images]
    out = []
    for i in range(n):
        picture = pictures[i % len(pictures)]
        height, width = picture.shape[1:]
        side = int(torch.randint(height // 3, height + 1, (1,), generator=generator))
        top = int(torch.randint(height - side + 1, (1,), generator=generator))
        left = int(torch.randint(width - side + 1, (1,), generator=generator))
        out.append(fit_shape(picture[None, :, top : top + side, left : left + side], shape)[0])
    return torch.cat(out), "square crops of two photographs (scikit-learn's), scaled to fit"


GENERATED: dict[str, Callable[[tuple[int, ...], int, int], tuple[Tensor, str]]] = {
    "photographs": _photographs,
    "noise_uniform": _uniform,
    "noise_gaussian": _gaussian,
}
"""OOD images that need no file."""
