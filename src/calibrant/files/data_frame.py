"""Predictions from what a caller passes: a data frame, `Predictions`, or scores and labels.

A table is anything with columns that supports Arrow's interchange: a data frame of pandas or Polars, or an Arrow table.
Its columns have the same names as in a file: the label, `logit_0 …` or `prob_cat …`, and optionally `id`, `split` and
`group`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.errors import InputError
from calibrant.files.arrays import ROLES, Arrays, Keys, join
from calibrant.files.columns import class_meta, stacked, stems
from calibrant.functional.inputs import predictions as checked
from calibrant.types import Predictions, Split


def given(
    data: Any,
    labels: Any = None,
    *,
    labels_key: str | None = None,
    probs: Any = None,
    classes: Sequence[Any] | None = None,
    split: Split | str = Split.UNKNOWN,
    class_axis: int = -1,
    ignore_index: int | None = None,
    group: Any = None,
) -> Predictions:
    """Return checked predictions. In a table, `labels_key` names the column of labels and `group` that of groups."""
    if isinstance(data, Predictions):
        if any(x is not None for x in (labels, labels_key, probs, classes, group)):
            raise InputError("Predictions carry their own labels, scores and groups; pass nothing beside them")
        if (split, class_axis, ignore_index) != (Split.UNKNOWN, -1, None):
            raise InputError(
                "Predictions carry their own split and are rows already; give these to calibrant.predictions"
            )
        return data
    if is_table(data) and labels is None:
        if probs is not None or not isinstance(group, str | None):
            raise InputError("a table brings its own columns; name them with labels_key= and group=")
        return of_table(data, Keys(labels=labels_key, group=group), classes, None if split == Split.UNKNOWN else split)
    if hasattr(data, "collect"):
        raise InputError(f"this {type(data).__name__} has not been read yet; pass data.collect()")
    if labels_key is not None:
        raise InputError(
            f"labels_key={labels_key!r} names a column of a table; beside arrays, pass the labels themselves"
        )
    return checked(
        data,
        labels,
        probs=probs,
        classes=classes,
        split=split,
        class_axis=class_axis,
        ignore_index=ignore_index,
        group=group,
    )


def is_table(data: Any) -> bool:
    return hasattr(data, "__arrow_c_stream__") and hasattr(data, "columns")


def of_table(data: Any, keys: Keys, classes: Sequence[Any] | None, split: Split | str | None) -> Predictions:
    """Predictions from the columns of a table."""
    import pyarrow as pa

    name = Path("the table")
    try:
        table = pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"this {type(data).__name__} is not a table of plain columns ({error})") from error
    found = stems(table.column_names, name)
    arrays = Arrays(
        name, tuple(found), lambda key: stacked(table, found[key], name, key), class_meta(found), "column", found
    )
    if keys.labels is None and not any(label in found for label in ROLES["labels"]):
        raise InputError(
            f"the table has no column 'label'; {arrays.found}; pass the name of the column of labels, labels_key='…'"
        )
    return join(arrays, keys, classes=classes, split=split, source="")
