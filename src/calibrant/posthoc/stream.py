"""Apply a map to Parquet that is larger than memory, a few rows at a time, and write a folder of parts.

The folder is written whole or not at all. A first pass computes the content hash of the input, the same as
`Predictions.fingerprint`, which shows whether a map is judged on the items it was fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import torch

from calibrant.errors import FileError
from calibrant.files import atomic, outputs, parquet
from calibrant.files.arrays import Arrays, Keys, content, join
from calibrant.files.columns import combined, other_columns
from calibrant.files.unlabelled import filled, labelled, without_labels
from calibrant.functional.fingerprint import Fingerprint
from calibrant.functional.scores import reduce
from calibrant.posthoc.map import FittedMap
from calibrant.types import Predictions

NUMBERS = 1 << 21
"""Numbers in a batch: 16 MiB of float64, of which a map makes a few copies."""


@dataclass(frozen=True)
class Applied:
    """What was written. NLL is over items whose label was possible before the map."""

    n: int
    k: int | None
    parts: int
    nll_before: float | None
    nll_after: float | None


def apply_parts(
    fitted: FittedMap,
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    keys: Keys | None = None,
    numbers: int = NUMBERS,
    progress: Callable[[int, int], None] | None = None,
) -> Applied:
    """Map every row of a Parquet file or folder, in order, and write a folder of parts that keeps the other columns."""
    keys = keys or Keys()
    where = Path(source)
    total = sum(sum(parquet.group_rows(part)) for part in parquet.parts(where))
    origin, done, k = "", 0, None
    before = after = 0.0
    possible = 0
    known = True
    with atomic.folder(target, outputs.PARTS) as temporary:
        for i, (p, arrays) in enumerate(rows(where, numbers, keys)):
            if not i:
                origin = p.origin or fingerprint(where, numbers, keys)
                k, known = p.k, labelled(arrays, keys)
            mapped = fitted.predictions(replace(p, origin=origin))
            others = other_columns(filled(arrays, keys), keys, text=False)
            assert others is not None  # Parquet has columns
            made = content(mapped) if known else without_labels(content(mapped))
            parquet.write(temporary / f"part-{i:06d}.parquet", combined(made, others))
            a, b = (reduce(p).log_p_label, reduce(mapped).log_p_label) if known else (None, None)
            if a is not None and b is not None:
                kept = ~torch.isneginf(a)
                possible += int(kept.sum())
                before, after = before - float(a[kept].sum()), after - float(b[kept].sum())
            done += p.n
            if progress:
                progress(done, total)
        if not done:
            raise FileError(f"{where}: there are no items (N = 0)")
        written = i + 1
    if not possible:
        return Applied(done, k, written, None, None)
    return Applied(done, k, written, before / possible, after / possible)


def rows(source: Path, numbers: int = NUMBERS, keys: Keys | None = None) -> Iterator[tuple[Predictions, Arrays]]:
    """Yield checked predictions and their arrays, a batch at a time. A group has the same number in every batch."""
    groups: dict[str, int] = {}
    for part in parquet.parts(source):
        size = max(1, numbers // parquet.width(part))
        for start, arrays in parquet.batches(part, size, everything=True):
            p = join(
                filled(arrays, keys or Keys()),
                keys,
                source=f"{part} (from row {start})" if start else str(part),
                doubt=False,
            )
            if p.group is not None and p.group_names is not None:
                own = torch.tensor([groups.setdefault(name, len(groups)) for name in p.group_names])
                p = replace(p, group=own[p.group], group_names=tuple(groups))
            yield p, arrays


def fingerprint(source: Path, numbers: int = NUMBERS, keys: Keys | None = None) -> str:
    """`Predictions.fingerprint()` of all rows, computed batch by batch."""
    found = Fingerprint()
    for p, _ in rows(source, numbers, keys):
        found.add(**p.scores())
    return found.hexdigest()
