"""Data sets by name, or a user's own Dataset, split from one seed into train / validation / calibration / test.

All files lie under one root: `root=`, or the environment variable CALIBRANT_DATA. Digits need none.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from calibrant.data.batches import Augment, Batches
from calibrant.data.camvid import CAMVID
from calibrant.data.cifar import CIFAR10, CIFAR100
from calibrant.data.cifar_shifts import CIFAR10_1, CIFAR10_2
from calibrant.data.digits import DIGITS
from calibrant.data.image_folder import parts_of_folder
from calibrant.data.imagenet import IMAGENET, IMAGENET_V2
from calibrant.data.label_maps import mark_parts
from calibrant.data.mnist import FASHION_MNIST, MNIST
from calibrant.data.news20 import NEWS20
from calibrant.data.records import Data, DatasetSpec, Part, Raw, Size, channel_moments, check_parts, numbered_classes
from calibrant.data.splits import split_parts
from calibrant.data.subsets import class_numbers, keep_classes, scale_sizes, split_name
from calibrant.data.svhn import SVHN
from calibrant.data.torch_dataset import Given, imported, parts_of
from calibrant.errors import FileError, InputError, suggest_names, unknown
from calibrant.files.paths import readable
from calibrant.types import Split

DATASETS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        DIGITS,
        MNIST,
        FASHION_MNIST,
        CIFAR10,
        CIFAR100,
        SVHN,
        CIFAR10_1,
        CIFAR10_2,
        CAMVID,
        IMAGENET,
        IMAGENET_V2,
        NEWS20,
    )
}
"""Name → what `load` needs to know of it."""

OWN_SIZES: Mapping[str, Size] = {"validation": 0.1, "calibration": 0.1, "test": 0.2}
"""How a single Dataset is split by default; the rest is train."""


def load(
    name_or_dataset: str | Given | Mapping[str, Given],
    *,
    root: str | Path | None = None,
    seed: int = 0,
    sizes: Mapping[str, Size] | None = None,
    shape: Sequence[int] | None = None,
    ignore_index: int | None = None,
) -> Data:
    """Read a data set and split it.

    The data set is a name, `NAME[0-4]` (some of its classes, `subsets`), `package.module:factory` (returns a Dataset),
    a folder of images, a Dataset, a pair of arrays (x, y), or a mapping of Datasets or pairs.

    `sizes` overrides the default size of each split: a number of items, or a fraction of the training set. With 0 the
    split is left out and its items go to train. An official test set stays test, whatever the seed. Images of a folder
    are scaled to `shape`. In maps of labels, `ignore_index` marks pixels without a class, as −1 and torch's −100 do.
    """
    check_sizes(sizes or {})
    if not isinstance(name_or_dataset, str):
        kind = "arrays" if isinstance(name_or_dataset, tuple) else type(name_or_dataset).__name__
        return _own(name_or_dataset, kind, seed, sizes or {}, ignore_index)
    if is_factory(name_or_dataset):
        return _own(imported(name_or_dataset), name_or_dataset, seed, sizes or {}, ignore_index)
    name, chosen = _in_table(name_or_dataset)
    if name not in DATASETS:
        if os.path.isdir(name_or_dataset):  # also a name too long for a path
            found = _folder(Path(name_or_dataset), seed, sizes or {}, shape or IMAGENET.shape)
            return replace(found, splits=mark_parts(found.splits, ignore_index, name_or_dataset))
        raise unknown("data set", name, DATASETS)
    spec = DATASETS[name]
    raw = _find(spec, root)
    classes, usual = raw.classes or spec.classes, dict(spec.sizes)
    if chosen is not None:
        if any(part.items is not None for part in raw.parts.values()):
            raise InputError(f"{name_or_dataset}: to choose classes of a folder, pass a folder that holds only them")
        numbers = class_numbers(chosen, classes, name)
        whole, raw = raw, keep_classes(raw, numbers, classes)
        classes = raw.classes or ()
        if Split.TRAIN in raw.parts:
            usual = scale_sizes(usual, raw.parts[Split.TRAIN].n / max(1, whole.parts[Split.TRAIN].n))
    splits = mark_parts(split_parts(raw.parts, {**usual, **(sizes or {})}, seed), ignore_index, name)
    first = next(iter(splits.values()))
    size = spec.shape if first.items is not None else tuple(first.x.shape[1:])  # scenes may have another size
    return Data(name_or_dataset, splits, classes, size, spec.mean, spec.std)


def is_factory(name: str) -> bool:
    """Whether the name is Python code, `package.module:factory`, and neither a data set of the table nor a folder."""
    return ":" in name and not is_named(name) and not os.path.isdir(name)


def is_named(name: str) -> bool:
    """Whether the name is in the table. Its mean and deviation are then constants that everybody uses."""
    return _in_table(name)[0] in DATASETS


def stored_name(name: str, where: str, typed: str | None = None) -> str:
    """The name of a data set that a file holds. A factory is accepted only if the user typed it too, because a file
    never runs code."""
    if is_factory(name) and name != typed:
        raise InputError(
            f"{where} names Python code for its data, {name!r}, and a file alone never runs code; if you trust it, "
            f"repeat it: --data {shlex.quote(name)}"
        )
    return name


def _in_table(text: str) -> tuple[str, str | None]:
    """The name in the table, and the choice of classes."""
    name, chosen = split_name(text)
    return name.replace(".", "_") if name.replace(".", "_") in DATASETS else name, chosen  # cifar10.1, as people write


def data_root(root: str | Path | None = None) -> Path | None:
    """The folder that holds all data, or None if it is not set."""
    chosen = root or os.environ.get("CALIBRANT_DATA")
    return Path(chosen).expanduser() if chosen else None


def check_sizes(sizes: Mapping[str, Size]) -> None:
    for name in sizes:
        if name not in set(Split) - {Split.UNKNOWN}:
            raise unknown("split", str(name), [s.value for s in Split if s is not Split.UNKNOWN])


def _find(spec: DatasetSpec, root: str | Path | None) -> Raw:
    """What the files of the first complete layout hold, checked against the constants of the data set."""
    under = data_root(root)
    if all(layout.files for layout in spec.layouts):
        if under is None:
            raise FileError(
                f"{spec.name}: no data root; set CALIBRANT_DATA or pass root= (--data-root). {_wanted(spec, None)}"
            )
        if not under.is_dir():
            raise FileError(f"{spec.name}: the data root {under} is not a folder. {_wanted(spec, under)}")
    for layout in spec.layouts:
        missing = [name for name in layout.files if not (under and (under / name).exists())]
        if not missing:
            place = under if under and layout.files else Path()  # bundled data need no root
            with readable(place.joinpath(*layout.files[:1]), f"a file of {spec.name}"):
                raw = layout.read(place)
            check_parts(raw, spec)
            return raw
        if len(missing) < len(layout.files):
            raise FileError(
                f"{spec.name}: {under}/{missing[0]} is missing ({len(missing)} of {len(layout.files)} files); "
                f"it comes from: {layout.source}"
            )
    raise FileError(f"{spec.name}: not found. {_wanted(spec, under)}")


def _wanted(spec: DatasetSpec, under: Path | None) -> str:
    place = under if under is not None else "ROOT"
    ways = []
    for layout in spec.layouts:
        more = f" … {layout.files[-1]} ({len(layout.files)} files)" if len(layout.files) > 1 else ""
        ways.append(f"{place}/{layout.files[0]}{more} [{layout.source}]")
    return "Provide " + "; or ".join(ways)


def _folder(folder: Path, seed: int, sizes: Mapping[str, Size], shape: Sequence[int]) -> Data:
    """A folder of images, one sub-folder per class; normalised as ImageNet's networks expect.

    A folder with parts keeps them, and missing parts are cut from train. A folder without parts is all test, unless
    `sizes` asks for other parts: then it is split like a Dataset.
    """
    split = any(size for name, size in sizes.items() if name != Split.TEST)
    official, classes = parts_of_folder(folder, shape, Split.TRAIN if split else Split.TEST)
    moments = (IMAGENET.mean, IMAGENET.std) if shape[0] == 3 else ((0.5,), (0.25,))
    return Data(
        folder.name, split_parts(official, _wanted_sizes(official, sizes), seed), classes, tuple(shape), *moments
    )


def _wanted_sizes(official: Mapping[Split, Part], sizes: Mapping[str, Size]) -> dict[str, Size]:
    """The sizes that were asked for, and default sizes for the other missing parts."""
    return {**{name: size for name, size in OWN_SIZES.items() if Split(name) not in official}, **sizes}


def _own(
    given: Given | Mapping[str, Given],
    called: str,
    seed: int,
    sizes: Mapping[str, Size],
    ignore_index: int | None,
) -> Data:
    official = mark_parts(parts_of(given), ignore_index, called)
    splits = split_parts(official, _wanted_sizes(official, sizes), seed)
    if Split.TRAIN not in splits:
        raise InputError('a mapping of data sets needs a "train" part')
    train = splits[Split.TRAIN]
    k = 1 + max(int(part.y.max()) for part in official.values())
    numbers = train.items is None and train.x.ndim > 1 and train.x.dtype != torch.long
    mean, std = channel_moments(train.x) if numbers else (None, None)
    return Data(called, splits, numbered_classes(k), tuple(train.x.shape[1:]), mean, std)


__all__ = ["DATASETS", "Augment", "Batches", "Data", "DatasetSpec", "Part", "data_root", "load", "stored_name"]

suggest_names(__name__)
