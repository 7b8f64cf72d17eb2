"""`.csv`: a header, then one item per line. Arrow parses it. If that fails, it is parsed cell by cell, to name the row,
the column and the text in the error.

What applies to the whole file (provenance, classes as a JSON list) is written into the first row.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from calibrant.errors import FileError
from calibrant.files.arrays import ROLES, Arrays, Content
from calibrant.files.columns import class_columns, class_meta, stacked, stems
from calibrant.files.paths import readable

_TEXT = {
    name
    for role in ("ids", "classes", "group", "split", "raw", "binary", "fitted_on", "origin")
    for name in ROLES[role]
}
_NUMBERS = {name for role in ("logits", "probs", "confidence", "features") for name in ROLES[role]}
"""Columns that always hold numbers; others, such as labels, may be text."""


def read(path: Path, text: str | None = None) -> Arrays:
    """The arrays of a CSV file. `text` names a column of text, besides those that always hold text."""
    header = _header(path)
    found = stems(header, path)

    def load(name: str) -> Any:
        columns, words = found[name], name in {*_TEXT, text}
        if words or name in _NUMBERS or len(columns) > 1:
            return _load(path, header, columns, name, words)
        try:
            return _load(path, header, columns, name, False)
        except FileError:
            return _load(path, header, columns, name, True)

    def table(columns: list[str], as_text: bool) -> Any:
        import pyarrow as pa
        from pyarrow import csv as arrow

        kinds = dict.fromkeys(columns, pa.string()) if as_text else {}
        convert = arrow.ConvertOptions(column_types=kinds, include_columns=columns, strings_can_be_null=False)
        with readable(path, "this table"):
            parse = arrow.ParseOptions(newlines_in_values=True)
            return arrow.read_csv(path, parse_options=parse, convert_options=convert) if columns else pa.table({})

    return Arrays(path, tuple(found), load, class_meta(found), "column", found, table)


def _header(path: Path) -> list[str]:
    try:
        with _open(path) as stream:
            header = next(csv.reader(stream), None)
        "".join(header or ()).encode()
    except (UnicodeEncodeError, csv.Error) as error:
        raise FileError(f"{path}: not a CSV file in UTF-8 ({error})") from error
    if not header:
        raise FileError(f"{path}: empty; a CSV file starts with a line of column names")
    other = next((mark for mark in (";", "\t", "|") if mark in header[0]), None) if len(header) == 1 else None
    if other is not None:
        raise FileError(f"{path}: the columns are separated by {other!r}; save the file with commas between them")
    return header


def _open(path: Path) -> TextIO:
    """Bytes that are not UTF-8 become lone surrogates, so that an error can name their row and column."""
    return path.open(newline="", encoding="utf-8-sig", errors="surrogateescape")


def _load(path: Path, header: list[str], columns: list[str], name: str, text: bool) -> Any:
    import pyarrow as pa
    from pyarrow import csv as arrow

    kind = pa.string() if text else pa.float64()
    convert = arrow.ConvertOptions(
        column_types=dict.fromkeys(columns, kind), include_columns=columns, null_values=[], strings_can_be_null=False
    )
    try:
        return stacked(arrow.read_csv(path, convert_options=convert), columns, path, name)
    except pa.ArrowException:
        lists = name in _NUMBERS and len(columns) == 1
        return _cell_by_cell(path, header, columns, _words if text else _list if lists else _number)


def _cell_by_cell(path: Path, header: list[str], columns: list[str], read: Callable[[str, str, str], Any]) -> Any:
    where = [header.index(c) for c in columns]
    table: list[list[Any]] = []
    with _open(path) as stream:
        lines = csv.reader(stream)
        next(lines)
        while (line := _next(lines, f"{path}: row {len(table)}")) is not None:
            if not line:
                continue
            at = f"{path}: row {len(table)} (line {lines.line_num})"
            if len(line) != len(header):
                raise FileError(f"{at} has {len(line)} cells, the header has {len(header)}")
            row = [read(line[i], at, header[i]) for i in where]
            if read is _list:
                (row,) = row
                if table and len(row) != len(table[0]):
                    raise FileError(f"{at}: column {columns[0]!r} has {len(row)} values, {len(table[0])} in row 0")
            table.append(row)
    if read is _words:
        return [row[0] for row in table]
    width = len(table[0]) if table else len(columns)
    array = np.array(table, dtype=np.float64).reshape(len(table), width)
    return array[:, 0] if width == 1 else array


def _next(lines: Iterator[list[str]], at: str) -> list[str] | None:
    try:
        return next(lines, None)
    except csv.Error as error:  # a cell of more than 131,072 characters
        raise FileError(f"{at} is not a line of a CSV file ({error})") from error


def _words(cell: str, at: str, column: str) -> str:
    try:
        cell.encode()
    except UnicodeEncodeError:
        raise FileError(f"{at}: column {column!r} is not in UTF-8; save the file as UTF-8") from None
    return cell


def _number(cell: str, at: str, column: str) -> float:
    try:
        if "_" in cell:  # Python would read 1_000
            raise ValueError
        return float(cell)
    except ValueError:
        shown = repr(cell if len(cell) <= 40 else f"{cell[:40]}…") if cell.strip() else "empty"
        raise FileError(f"{at}: column {column!r} is {shown}, not a number") from None


def _list(cell: str, at: str, column: str) -> list[float]:
    """The numbers of a cell that holds a list, such as `[0.1, 0.9]`, or one number."""
    plain = cell.strip()
    if not (plain.startswith("[") and plain.endswith("]")):
        return [_number(cell, at, column)]
    return [_number(part, at, column) for part in plain[1:-1].split(",")]


def write(path: Path, content: Content) -> None:
    blocks, header, about = [], [], content.about
    classes = content.lists.get("classes", ())
    if class_columns("logit", classes, list(content.beside(()))):
        about.pop("classes")
    else:
        classes = ()
    for role, tensor in content.tensors.items():
        if tensor.ndim > 2 or (role == "logits" and tensor.ndim != 2):
            raise FileError(f"a .csv cannot hold {role} of shape {tuple(tensor.shape)}; write .npz or .parquet")
        name = ROLES.get(role, (role,))[-1]
        of = classes if role in ("logits", "sets") else ()
        header += [name] if tensor.ndim == 1 else [f"{name}_{j}" for j in of or range(tensor.shape[1])]
        blocks.append(tensor.reshape(len(tensor), -1).tolist())
    n = len(blocks[0])
    for name, texts in content.rows.items():
        header.append(name)
        blocks.append([[text] for text in texts])
    header.append("split")
    blocks.append([[content.texts["split"]]] * n)
    for name, text in about.items():
        header.append(name)
        blocks.append([[text], *[[""]] * (n - 1)])
    for name, column in content.beside(header).items():
        header.append(name)
        blocks.append([["" if value is None else value] for value in column.to_pylist()])
    with path.open("w", newline="", encoding="utf-8") as stream:
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(header)
        lines.writerows(list(chain.from_iterable(cells)) for cells in zip(*blocks, strict=True))
