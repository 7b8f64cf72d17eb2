"""Images and labels as arrays in a file: a `.npz` with `images` and `labels`, or a `.npy` with its labels beside it.

The labels of `NAME.npy` are `NAME_labels.npy` or `labels.npy`. Where maps of labels can be used, they may be [N, H, W].
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.data.label_maps import check_classes, mark_ignored, mark_parts
from calibrant.data.records import MOST_CLASSES, Data, Part, numbered_classes
from calibrant.errors import FileError
from calibrant.files import npz
from calibrant.files.paths import near
from calibrant.types import Split

IMAGES, LABELS = ("images", "x", "data"), ("labels", "y", "label")


def load_file(
    path: Path, classes: Sequence[str] | None, *, maps: bool = False, ignore_index: int | None = None
) -> Data:
    """A file of images and labels as a data set with only a test part; without `classes` their names are numbers.

    `maps`: labels may be [N, H, W], a class for each pixel; `ignore_index` (and −1) marks pixels without one.
    """
    x, y = read_set(path, MOST_CLASSES if classes is None else len(classes), maps=maps, ignore_index=ignore_index)
    names = tuple(classes) if classes is not None else numbered_classes(1 + int(y.max()))
    parts = mark_parts({Split.TEST: Part.of(x, y, Split.TEST)}, ignore_index, str(path))
    return Data(path.name, parts, names, tuple(x.shape[1:]))


def read_set(path: Path, classes: int, *, maps: bool = False, ignore_index: int | None = None) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, C, H, W] and labels [N]; with `maps` also [N, H, W], −1 where a pixel has no class."""
    if not path.is_file():
        raise FileError(f"{path}: no such file of images and labels (.npz, or .npy with labels beside it){near(path)}")
    if path.suffix == ".npz":
        held = read_arrays(path, (), only=IMAGES + LABELS)
        x, y = (_first(held, names, path) for names in (IMAGES, LABELS))
    elif path.suffix == ".npy":
        beside = [path.with_name(f"{path.stem}_labels.npy"), path.with_name("labels.npy")]
        beside.insert(0, path.with_name(f"{path.stem.removesuffix('_data')}_labels.npy"))
        x = npz.read_npy(path)
        labels = next((p for p in beside if p.is_file() and p != path), None)
        if labels is None:
            raise FileError(f"{path}: its labels are missing; put them beside it as {beside[1].name}")
        y = npz.read_npy(labels)
    else:
        raise FileError(f"{path}: {path.suffix or 'a file without suffix'} is not a set of images; use .npz or .npy")
    x = check_images(_channels_last(x), path)
    y = y[:, 0] if maps and y.ndim == 4 and y.shape[1] == 1 else y
    y = check_maps(y, classes, path, ignore_index) if maps and y.ndim == 3 else check_labels(y, classes, path)
    return check_pairs(to_images(x), y, path)


def read_images(path: Path) -> Tensor:
    """Images uint8 [N, C, H, W] of a file; labels are not needed."""
    if not path.is_file():
        raise FileError(f"{path}: no such file of images (.npz or .npy){near(path)}")
    x = npz.read_npy(path) if path.suffix == ".npy" else _first(read_arrays(path, (), only=IMAGES), IMAGES, path)
    return to_images(check_images(_channels_last(x), path))


def _channels_last(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """torch's [N, C, H, W] as [N, H, W, C], if the shape leaves no doubt."""
    return x.transpose(0, 2, 3, 1) if x.ndim == 4 and x.shape[-1] not in (1, 3) and x.shape[1] in (1, 3) else x


def _first(held: dict[str, NDArray[np.generic]], names: tuple[str, ...], path: Path) -> NDArray[np.generic]:
    for name in names:
        if name in held:
            return held[name]
    raise FileError(
        f"{path}: has no array {names[0]!r} (nor {', '.join(names[1:])}); it holds {', '.join(held) or 'none'}"
    )


def check_images(x: NDArray[np.generic], path: Path) -> NDArray[np.generic]:
    if x.dtype != np.uint8:
        raise FileError(f"{path}: images are {x.dtype}; save bytes 0 … 255 (uint8)")
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[-1] not in (1, 3)):
        raise FileError(f"{path}: images of shape {x.shape}; expected [N, H, W, C] with 1 or 3 channels, or [N, H, W]")
    if len(x) == 0:
        raise FileError(f"{path}: holds no images")
    return x


def check_maps(y: NDArray[np.generic], classes: int, path: Path, ignore_index: int | None = None) -> NDArray[np.int64]:
    if y.dtype.kind not in "iub" or y.size == 0:
        raise FileError(f"{path}: maps of labels are {y.dtype} of shape {y.shape}; expected whole numbers [N, H, W]")
    found = mark_ignored(torch.from_numpy(as_int64(y, path)), ignore_index, str(path))
    check_classes(found, classes, str(path), "the model")
    labels: NDArray[np.int64] = found.numpy()
    return labels


def as_int64(y: NDArray[np.generic], path: Path) -> NDArray[np.int64]:
    """As int64; larger unsigned numbers would become negative, which marks pixels without a class."""
    if y.dtype.kind == "u" and y.size and int(y.max()) > np.iinfo(np.int64).max:
        raise FileError(f"{path}: label {int(y.max())}; classes are 0, 1, …")
    out: NDArray[np.int64] = y.astype(np.int64)
    return out


def check_labels(y: NDArray[np.generic], classes: int, path: Path) -> NDArray[np.int64]:
    if y.ndim == 3:
        raise FileError(
            f"{path}: labels are maps of shape {y.shape}, and this needs one class per item [N]; "
            "maps are for `calibrant predict` (--class-axis 1) and `calibrant train`"
        )
    if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1 or len(y) == 0:
        raise FileError(f"{path}: labels are {y.dtype} of shape {y.shape}; expected whole numbers [N]")
    labels = as_int64(y, path)
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        row = int(wrong[0])
        raise FileError(f"{path}: label {labels[row]} in row {row}; the classes are 0 … {classes - 1}")
    return labels


def with_labels(x: Tensor, y: NDArray[np.generic], classes: int, path: Path) -> tuple[Tensor, Tensor]:
    """The images of a file and their labels, one checked class number per image."""
    return check_pairs(x, check_labels(y, classes, path), path)


def check_pairs(x: Tensor, y: NDArray[np.int64], path: Path) -> tuple[Tensor, Tensor]:
    if len(x) != len(y):
        raise FileError(f"{path}: {len(x)} images but {len(y)} labels; they must be of equal length")
    return x, torch.from_numpy(y)


def to_images(x: NDArray[np.generic]) -> Tensor:
    """[N, H, W] or [N, H, W, C] → uint8 [N, C, H, W]."""
    channels_last = x[..., None] if x.ndim == 3 else x
    return torch.from_numpy(np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2).astype(np.uint8)))


def read_arrays(path: Path, needed: tuple[str, ...], only: tuple[str, ...] = ()) -> dict[str, NDArray[np.generic]]:
    """The arrays of an npz (with `only`: those of these names), none of which may be pickled objects."""
    archive = npz.read(path)
    held: dict[str, NDArray[np.generic]] = {k: archive.load(k) for k in archive.names if not only or k in only}
    for key in needed:
        if key not in held:
            raise FileError(f"{path}: has no array {key!r} (it has {', '.join(held)})")
    return held
