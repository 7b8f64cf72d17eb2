"""Labels of any kind (text, pandas Series and Categoricals, lists) → numbers, in the order of the classes.

Numbers stay as they are. Text needs the names of the classes in the order of the scores: from the caller, from the
columns of a table of scores, or from a Categorical's own categories. Nothing is sorted or guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from calibrant.errors import InputError

REMEDY = (
    "number the classes from 0, or name them in the order of the scores: classes=[…] in Python, an array `classes` in "
    "a file, columns prob_cat, prob_dog, … in a table"
)

PREFIXES = ("logit_", "logits_", "prob_", "probs_")
"""Prefixes before a class name in the name of its column."""


def known_classes(classes: Sequence[Any] | None, labels: Any, scores: Any) -> list[str] | None:
    """The class names: as given, else the columns of the scores, else the categories of the labels.

    Columns with other names than the categories (p1, p2) are not class names, and the categories decide.
    """
    columns = _texts(getattr(scores, "columns", None))
    for prefix in PREFIXES:
        if columns and all(name.startswith(prefix) for name in columns):
            columns = [name.removeprefix(prefix) for name in columns]
    if classes is None:
        own = _texts(getattr(labels, "categories", getattr(getattr(labels, "cat", None), "categories", None)))
        classes = own if own and not set(own) <= {*(columns or ())} else columns
        if classes is None:
            return None
    names = [as_text(name) for name in (classes.tolist() if hasattr(classes, "tolist") else classes)]
    if columns and set(columns) == set(names):
        agreed(names, columns)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the class {twice!r} is named twice; class names must differ")
    return names


def _texts(names: Any) -> list[str] | None:
    """The names as a list if all are text, else None."""
    return list(names) if names is not None and all(isinstance(name, str) for name in names) else None


def numbered(labels: Any, classes: Sequence[str] | None, name: str = "label", where: str = "") -> Any:
    """Labels as numbers. Only text is changed; numbers are checked elsewhere."""
    if isinstance(labels, Tensor):
        return labels
    try:
        array = np.asarray(labels)
    except ValueError:  # ragged
        return labels
    if array.dtype.kind not in "OUST":
        return labels
    entries = array.reshape(-1).tolist()
    empty = next((i for i, entry in enumerate(entries) if entry is None or entry != entry), None)
    if empty is not None:
        raise InputError(f"{where}{name} in row {empty} is empty; every item needs one")
    if all(isinstance(entry, int) for entry in entries):  # pandas' nullable integers
        return np.array(entries, dtype=np.int64).reshape(array.shape)
    texts = [as_text(entry) for entry in entries]
    if classes is None:
        row = next((i for i, text in enumerate(texts) if not text.lstrip("-").isdecimal()), 0)
        raise InputError(f"{where}{name} in row {row} is {texts[row][:40]!r}, text and not a number; {REMEDY}")
    place = {text: i for i, text in enumerate(classes)}
    stranger = next((i for i, text in enumerate(texts) if text not in place), None)
    if stranger is not None:
        raise InputError(
            f"{where}{name} in row {stranger} is {texts[stranger][:40]!r}, which is not a class; the classes are "
            f"{listed(classes)}"
        )
    return np.array([place[text] for text in texts], dtype=np.int64).reshape(array.shape)


def named_apart(labels: Any, predicted: Any) -> list[str] | None:
    """The classes of a set without scores: all names among labels and predictions, in an order that does not matter."""
    columns = [np.asarray(column) for column in (labels, predicted) if not isinstance(column, Tensor)]
    if len(columns) < 2 or any(column.dtype.kind not in "OUST" for column in columns):
        return None
    return sorted({as_text(entry) for column in columns for entry in column.reshape(-1).tolist()})


def agreed(classes: Sequence[Any], named: Sequence[str], where: str = "") -> None:
    """Raise an error if classes= has other names, or another order, than the columns of the scores."""
    given = [as_text(name) for name in classes]
    if given == list(named):
        return
    same = set(given) == set(named)
    raise InputError(
        f"{where}classes= says {listed(given)}, but the scores {'are in the order' if same else 'are of the classes'} "
        f"{listed(named)}, by their own names; leave classes= out"
    )


def listed(classes: Sequence[str], most: int = 10) -> str:
    """The names in their order; at most `most`, then the number of all."""
    return ", ".join(classes[:most]) + (f", … ({len(classes):,} classes)" if len(classes) > most else "")


def as_text(entry: Any) -> str:
    """An entry of a text array as str; NumPy and Parquet may hold bytes."""
    return entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry)
