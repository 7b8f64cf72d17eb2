"""`.parquet`: one file, or a folder of parts read in the order of their names.

`read` holds the whole table; `batches` yields it a few rows at a time, for what is larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.errors import FileError
from calibrant.files.arrays import Arrays, Content
from calibrant.files.columns import class_meta, is_score, stacked, stems
from calibrant.files.npz import numpy
from calibrant.files.paths import readable, visible


def parts(path: Path) -> list[Path]:
    """The file itself, or all `*.parquet` in the folder at any depth, except names that begin with `.` or `_`."""
    if not path.is_dir():
        return [path]
    inside = visible(path, "**/*.parquet")
    kept = [p for p in inside if not any(n.startswith("_") for n in p.relative_to(path).parts)]
    if not kept and (path / "test.npz").is_file():
        raise FileError(f"{path} is a folder; name its predictions: {path / 'test.npz'}")
    if not kept:
        raise FileError(f"{path} is a folder without .parquet parts; name a file, or a folder of Parquet parts")
    return kept


def read(path: Path) -> Arrays:
    import pyarrow as pa

    files = parts(path)
    opened = [_open(part) for part in files]
    first = opened[0].schema_arrow
    for part, each in zip(files, opened, strict=True):
        _same_columns(part, each.schema_arrow.names, files[0], first.names)
    found = stems(first.names, files[0])

    def load(name: str) -> Any:
        tables = [
            _guarded(part, lambda e=each: e.read(columns=found[name])) for part, each in zip(files, opened, strict=True)
        ]
        try:
            whole = pa.concat_tables(tables, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise FileError(f"{path}: the parts disagree on the type of {name!r} ({error})") from error
        return _guarded(path, lambda: stacked(whole, found[name], path, name))

    def table(columns: list[str], as_text: bool) -> Any:
        return pa.concat_tables([each.read(columns=columns) for each in opened], promote_options="permissive")

    return Arrays(path, tuple(found), load, class_meta(found) | _meta(files[0], first), "column", found, table)


def group_rows(part: Path) -> list[int]:
    """Rows of each row group."""
    meta = _open(part).metadata
    return [int(meta.row_group(i).num_rows) for i in range(meta.num_row_groups)]


def width(part: Path) -> int:
    """Numbers per row, counting the entries of lists; from the metadata only."""
    meta = _open(part).metadata
    if meta.num_rows == 0:
        return 1
    group = next(g for g in map(meta.row_group, range(meta.num_row_groups)) if g.num_rows)
    values = sum(int(group.column(c).num_values) for c in range(group.num_columns))
    return max(1, values // int(group.num_rows))


def batches(
    part: Path, size: int, groups: Sequence[int] | None = None, *, everything: bool = False
) -> Iterator[tuple[int, Arrays]]:
    """Yield (first row, arrays) for every `size` rows of one part, or of these row groups of it.

    Only scores and labels are read, unless `everything` is set.
    """
    file = _open(part)
    found = stems(file.schema_arrow.names, part)
    meta, start = class_meta(found) | _meta(part, file.schema_arrow), 0
    names = list(found) if everything else _wanted(found)
    columns = None if everything else [c for name in names for c in found[name]]
    stream = _guarded(part, lambda: file.iter_batches(batch_size=size, row_groups=groups, columns=columns))
    while (batch := _guarded(part, lambda: next(stream, None))) is not None:

        def load(name: str, batch: Any = batch) -> Any:
            return _guarded(part, lambda: stacked(batch, found[name], part, name))

        def table(columns: list[str], as_text: bool, batch: Any = batch) -> Any:
            return batch.select(columns)

        yield start, Arrays(part, tuple(names), load, meta, "column", found, table)
        start += batch.num_rows


def write(path: Path, content: Content) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields: dict[str, Any] = {
        "label" if role == "labels" else role: _column(t, role) for role, t in content.tensors.items()
    }
    fields |= {name: pa.array(texts) for name, texts in content.rows.items()}
    n = len(next(iter(fields.values())))
    fields["split"] = pa.array([content.texts["split"]] * n).dictionary_encode()
    fields |= content.beside(fields)
    meta = {f"calibrant.{name}": text for name, text in content.about.items()}
    pq.write_table(pa.table(fields).replace_schema_metadata(meta), path)


def _column(tensor: Any, role: str) -> Any:
    """[N] → numbers, [N, K] → lists; members [M, N, K] → one list of M lists for each item."""
    import pyarrow as pa

    array = numpy(tensor)
    if role == "logits" and array.ndim == 3:
        array = np.moveaxis(array, 0, 1)
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _open(part: Path) -> Any:
    import pyarrow.parquet as pq

    # a buffer of all row groups that will be read would take as much memory as they do
    return _guarded(part, lambda: pq.ParquetFile(part, pre_buffer=False))


def _guarded(part: Path, action: Any) -> Any:
    with readable(part, "this Parquet"):
        return action()


def _same_columns(part: Path, names: list[str], first: Path, expected: list[str]) -> None:
    missing = [n for n in expected if n not in names]
    if missing:
        raise FileError(f"{part}: column {missing[0]!r} is missing; {first.name} has it")
    more = [n for n in names if n not in expected and is_score(n)]  # a part may have more of the columns that we ignore
    if more:
        raise FileError(f"{part}: column {more[0]!r} is a score of a class that {first.name} does not have")


def _meta(part: Path, schema: Any) -> dict[str, str]:
    pairs = (schema.metadata or {}).items()
    ours = {k[10:]: v for k, v in pairs if k.startswith(b"calibrant.")}
    texts: dict[str, str] = _guarded(part, lambda: {k.decode(): v.decode() for k, v in ours.items()})
    return texts


def _wanted(found: dict[str, list[str]]) -> list[str]:
    """A stream needs scores and labels; ids and features would only cost memory."""
    skip = {"ids", "id", "features", "feature", "classes"}
    return [name for name in found if name not in skip]
