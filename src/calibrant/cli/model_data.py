"""The data set that a command line shows a model: by name, a file of arrays, or a folder of images.

`predict` and `stress` ask for it in the same words. What the model was trained on is the default, with its own split; a
file or folder takes the model's classes and, where the model says one, its image size. Labels may be maps, a class for
each pixel, where the verb can use them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data import Data
    from calibrant.ensembles.reference import Reference

ARRAYS = (".npz", ".npy")


def data_name(asked: str | None, model: Reference) -> str:
    """What was asked for, or what the model was trained on."""
    from calibrant.data import stored_name

    if asked is None and model.data is None:
        raise InputError("--data is missing: this model does not say what it was trained on")
    return asked or stored_name(model.data or "", model.name)


def is_arrays(name: str) -> bool:
    """Whether this is a file of images and labels, which need not show every class."""
    return Path(name).suffix in ARRAYS


def model_data(
    name: str,
    model: Reference,
    root: Path | None,
    seed: int | None,
    *,
    maps: bool = False,
    ignore_index: int | None = None,
) -> Data:
    from calibrant.data import load
    from calibrant.data.collected import file_set, native
    from calibrant.data.label_maps import one_label_each
    from calibrant.data.relabelled import relabelled

    path, own = Path(name), name == model.data
    if is_arrays(name):
        return file_set(path, model.classes, maps=maps, ignore_index=ignore_index)
    loaded = load(
        name,
        root=root,
        seed=seed if seed is not None else model.data_seed if own else 0,
        sizes=model.sizes if own else None,
        shape=model.shape or native(path),
        ignore_index=model.ignore_index if ignore_index is None and own else ignore_index,
    )
    if not maps:
        one_label_each(loaded.splits, name)
    return relabelled(loaded, model.classes) if path.is_dir() and model.classes is not None else loaded
