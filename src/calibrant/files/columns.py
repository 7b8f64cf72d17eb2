"""The columns of a table, and the arrays that they form.

Columns `logit_0 … logit_{K-1}` form one array `logit`, and so do columns named after classes, `logit_cat`, `logit_dog`,
in their order in the table. A column of lists is an array of rows.

A table that is written after a map keeps every column that the map does not replace: the label under its own name and
in its own words, ids, groups, and whatever else the table holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.errors import FileError
from calibrant.files.arrays import ROLES, Arrays, Content, Keys, choose

KEPT = ("labels", "ids", "features", "group")
"""Roles that no map changes. All other roles are written anew."""
_NUMBERED = re.compile(r"(.+)_([0-9]{1,9})")
_SCORES = ("logit", "prob", "logits", "probs")
_PREFIXES = tuple(f"{stem}_" for stem in _SCORES)


def is_score(column: str) -> bool:
    """Whether a column is one class's score."""
    match = _NUMBERED.fullmatch(column)
    return match is not None and match[1] in _SCORES


def stems(columns: Sequence[str], path: Path) -> dict[str, list[str]]:
    """Return {name of an array: its columns in class order}. A missing number is an error."""
    if len(set(columns)) != len(columns):
        twice = next(c for c in columns if list(columns).count(c) > 1)
        raise FileError(f"{path}: column {twice!r} is there twice")
    found: dict[str, list[str]] = {}
    numbers: dict[str, dict[int, str]] = {}
    for column in columns:
        match = _NUMBERED.fullmatch(column)
        if match and not match[1].startswith(_PREFIXES):  # prob_type_1 is the class type_1
            twin = numbers.setdefault(match[1], {}).setdefault(int(match[2]), column)
            if twin != column and match[1] in _SCORES:
                raise FileError(f"{path}: columns {twin!r} and {column!r} are the same class")
        found[column] = [column]
    for stem, members in numbers.items():
        if stem in found:  # `logits` and `logits_0`: the plain name wins, the others are ignored
            continue
        if stem in _SCORES:
            gap = next((i for i in range(max(members) + 1) if i not in members), None)
            if gap is not None:
                raise FileError(f"{path}: column '{stem}_{gap}' is missing ('{stem}_{max(members)}' is there)")
            if len(members) == 1:
                raise FileError(
                    f"{path}: column '{stem}_1' is missing: one class only ('{stem}_0'); the score of class 1 in a "
                    f"binary problem is a column {stem!r}"
                )
        if sorted(members) == list(range(len(members))):
            found[stem] = [members[i] for i in range(len(members))]
            for column in found[stem]:
                found.pop(column)
    if not any(stem in found for stem in _SCORES):  # beside other scores, `prob_max` is a column like any other
        for stem in _SCORES:
            named = [column for column in found if column.startswith(f"{stem}_")]
            if len(named) > 1:
                found = {name: columns for name, columns in found.items() if name not in named} | {stem: named}
    return found


def class_meta(found: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The class names in the form of a file's metadata, if the columns of the scores are named after the classes."""
    for stem in _SCORES:
        names = [column.removeprefix(f"{stem}_") for column in found.get(stem, ())]
        if len(names) > 1 and not all(name.isdigit() for name in names):
            return _meta(names)
    return {}


def _meta(classes: Sequence[str]) -> dict[str, str]:
    return {"classes": json.dumps(list(classes), ensure_ascii=False)}


def class_columns(stem: str, classes: Sequence[str], beside: Sequence[str]) -> list[str]:
    """The columns `logit_cat`, `logit_dog`, …, or none if reading them again would not give these classes."""
    named = [f"{stem}_{name}" for name in classes]
    try:
        return named if class_meta(stems([*named, *beside], Path())) == _meta(classes) else []
    except FileError:  # classes called 3 and 7 would be columns 3 and 7 of eight
        return []


def dense(column: Any, path: Path, name: str) -> Any:
    """An Arrow column as NumPy: numbers [N], lists [N, K], lists of lists [M, N, K]; text as a list."""
    import pyarrow as pa

    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if flat.null_count:
        row = flat.is_null().to_pylist().index(True)
        raise FileError(f"{path}: column {name!r} is empty in row {row}")
    shape = [len(flat)]
    while pa.types.is_list(flat.type) or pa.types.is_large_list(flat.type) or pa.types.is_fixed_size_list(flat.type):
        lengths = np.diff(flat.offsets.to_numpy()) if not pa.types.is_fixed_size_list(flat.type) else None
        if lengths is not None and len(lengths) and (lengths != lengths[0]).any():
            row = int((lengths != lengths[0]).argmax()) // int(np.prod(shape[1:], dtype=int))
            raise FileError(f"{path}: column {name!r} has {lengths[row]} values in row {row}, {lengths[0]} in row 0")
        shape.append(flat.type.list_size if lengths is None else int(lengths[0]) if len(lengths) else 0)
        flat = flat.flatten()
        if flat.null_count:
            row = flat.is_null().to_pylist().index(True) // int(np.prod(shape[1:], dtype=int))
            raise FileError(f"{path}: column {name!r} has an empty value in row {row}")
    if pa.types.is_dictionary(flat.type):
        if pa.types.is_string_view(flat.type.value_type):  # Polars' categories, which Arrow does not decode
            flat = pa.DictionaryArray.from_arrays(flat.indices, flat.dictionary.cast(pa.string()))
        flat = flat.dictionary_decode()
    if not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type) or pa.types.is_boolean(flat.type)):
        values = flat.to_pylist()
        return values if len(shape) == 1 else np.array(values, dtype=str).reshape(shape)
    array = flat.to_numpy(zero_copy_only=False).reshape(shape)
    members = array.ndim == 3 and name not in ("features", "feature")
    return np.moveaxis(array, 1, 0) if members else array


def stacked(table: Any, columns: Sequence[str], path: Path, name: str) -> Any:
    """The array that these columns of an Arrow table or record batch form."""
    parts = [dense(table.column(c), path, c) for c in columns]
    if len(parts) == 1:
        return parts[0] if columns[0] == name else np.asarray(parts[0])[:, None]
    for column, part in zip(columns, parts, strict=True):
        if not isinstance(part, np.ndarray) or part.ndim != 1:
            raise FileError(f"{path}: column {column!r} does not hold one number per row")
    return np.stack(parts, 1)


@dataclass(frozen=True)
class OtherColumns:
    """An Arrow table, and the name of the column that fills each role in it."""

    table: Any
    roles: Mapping[str, str]


def other_columns(arrays: Arrays, keys: Keys, *, text: bool) -> OtherColumns | None:
    """The columns that a map does not replace; with `text`, as the text in a CSV file. Arrays have none."""
    if arrays.table is None:
        return None
    roles = choose(arrays, keys)
    # labels may come from a file of their own
    kept = {role: roles[role] for role in KEPT if roles.get(role) in arrays.columns}
    replaced = {name for role in ROLES.keys() - {*KEPT} for name in (*ROLES[role], roles.get(role))}
    names = [name for name in arrays.names if name not in replaced or name in kept.values()]
    return OtherColumns(arrays.table([c for name in names for c in arrays.columns.get(name, ())], text), kept)


def combined(content: Content, others: OtherColumns) -> Content:
    """The content without what the other columns already hold. Predicted classes are named if the labels are."""
    tensors = {role: tensor for role, tensor in content.tensors.items() if role not in others.roles}
    lists = {role: texts for role, texts in content.lists.items() if role not in others.roles}
    names = lists.get("classes", ())
    label = others.roles.get("labels")
    if label and "predicted" in tensors and others.table.column(label)[0].as_py() in names:
        lists["predicted"] = tuple(names[i] for i in tensors.pop("predicted").tolist())
    return replace(content, tensors=tensors, lists=lists, others=others.table)
