"""Predictions to and from disk. All input is checked by `functional.inputs`; all output is written atomically.

`read(path)` takes `.npz`, `.safetensors`, `.parquet` (a file or a folder of parts), `.csv`, and a `.npy` of scores with
a `.npy` of labels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from calibrant.errors import FileError, suggest_names
from calibrant.files import arrays, atomic, csv, npz, parquet, safetensors
from calibrant.files.arrays import Arrays, Content, Keys
from calibrant.files.columns import OtherColumns, combined, other_columns
from calibrant.files.data_frame import is_table, of_table
from calibrant.files.paths import existing
from calibrant.files.unlabelled import filled, labelled, without_labels
from calibrant.types import Predictions, Split


class Format(Protocol):
    """A format is a module with these two functions."""

    def read(self, path: Path) -> Arrays: ...
    def write(self, path: Path, content: Content) -> None: ...


FORMATS: dict[str, Format] = {".csv": csv, ".npz": npz, ".parquet": parquet, ".safetensors": safetensors}
"""Suffix → the module that reads and writes it."""

TABLES = (".csv", ".parquet")


def read(
    path: str | os.PathLike[str] | Any,
    *,
    labels: str | os.PathLike[str] | None = None,
    logits_key: str | None = None,
    probs_key: str | None = None,
    labels_key: str | None = None,
    predicted_key: str | None = None,
    confidence_key: str | None = None,
    group_key: str | None = None,
    split: Split | str | None = None,
    class_axis: int = -1,
    ignore_index: int | None = None,
) -> Predictions:
    """Read predictions from a file or a data frame (pandas, Polars, Arrow), and check them.

    `labels` is a `.npy` file of labels, for a `.npy` file of scores or for a file without labels. The `…_key` arguments
    name arrays or columns that do not have the usual names. Labels and groups may be text.
    """
    keys = Keys(logits_key, probs_key, labels_key, predicted_key, confidence_key, group_key)
    if is_table(path):
        return of_table(path, keys, None, split)
    where = existing(path)
    if where.suffix == ".npy" and labels is None:
        raise FileError(f"{where}: a .npy of scores needs a .npy of labels beside it (--labels FILE.npy)")
    found = _opened(where, labels, group_key)
    return arrays.join(found, keys, class_axis=class_axis, ignore_index=ignore_index, split=split)


def read_new(
    path: Path, keys: Keys, *, labels: Path | None = None, class_axis: int = -1, ignore_index: int | None = None
) -> tuple[Predictions, bool]:
    """Return (predictions, whether they have labels) for items that may have none.

    Predictions always have labels, so placeholders stand in for missing ones.
    """
    found = _opened(existing(path), labels)
    known = labelled(found, keys)
    items = arrays.join(
        filled(found, keys, class_axis), keys, class_axis=class_axis, ignore_index=ignore_index if known else None
    )
    return items, known


def write(
    path: str | os.PathLike[str],
    predictions: Predictions,
    beside: Mapping[str, Tensor] | None = None,
    others: OtherColumns | None = None,
    *,
    labels: bool = True,
) -> Path:
    """Write predictions, and the tensors `beside` them, to a file whose suffix names the format.

    The file is written whole or not at all. With `labels=False` the labels are left out. `others` are columns of the
    table that the predictions came from; a format without columns leaves them out.
    """
    target = Path(path)
    chosen = FORMATS.get(target.suffix)
    if chosen is None:
        raise FileError(f"cannot write {target}: unknown format {target.suffix!r}; use one of {', '.join(FORMATS)}")
    with atomic.file(target) as temporary:
        content = arrays.content(predictions) if labels else without_labels(arrays.content(predictions))
        content = replace(content, tensors={**content.tensors, **(beside or {})})
        if others is not None and target.suffix in TABLES:
            content = combined(content, others)
        chosen.write(temporary, content)
    return target


def others(source: Path, target: Path, keys: Keys, labels: Path | None = None) -> OtherColumns | None:
    """The columns of `source` that a map does not replace, if both are tables."""
    if target.suffix not in TABLES or not (source.is_dir() or source.suffix in TABLES):
        return None
    return other_columns(filled(_opened(source, labels), keys), keys, text=target.suffix == ".csv")


def _opened(path: Path, labels: str | os.PathLike[str] | None, group_key: str | None = None) -> Arrays:
    if path.suffix == ".npy":
        return npz.read_pair(path, None if labels is None else existing(labels))
    found = csv.read(path, group_key) if path.suffix == ".csv" else reader(path).read(path)
    return found if labels is None else _with_labels(found, existing(labels))


def reader(path: Path) -> Format:
    """The format of a file by its suffix; a folder is a folder of Parquet parts."""
    if path.is_dir():
        parquet.parts(path)
        return parquet
    chosen = FORMATS.get(path.suffix)
    if chosen is None:
        kinds = ", ".join([*FORMATS, ".npy"])
        raise FileError(f"{path}: unknown format {path.suffix!r}; use one of {kinds} or a folder of .parquet parts")
    return chosen


def _with_labels(found: Arrays, labels: Path) -> Arrays:
    """The same arrays, with the labels of a `.npy` file."""
    if labels.suffix != ".npy":
        raise FileError(f"{labels}: labels kept apart must be a .npy file")
    names = tuple(n for n in found.names if n not in arrays.ROLES["labels"])
    return replace(
        found,
        names=(*names, "labels"),
        load=lambda name: npz.read_npy(labels) if name == "labels" else found.load(name),
        columns={name: found.columns[name] for name in names if name in found.columns},
    )


__all__ = ["FORMATS", "Keys", "existing", "others", "read", "read_new", "reader", "write"]

suggest_names(__name__)
