"""Names short enough for a column: the shortest ends of paths that tell them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from calibrant.errors import escaped


def short_names(names: Sequence[str]) -> list[str]:
    """['run/a/test.npz', 'run/b/test.npz'] → ['a/test.npz', 'b/test.npz']; equal ones are numbered.

    Of module:factory@WEIGHTS the weights are left out where the factories tell them apart.
    """
    names = [escaped(name) for name in names]
    heads = [head if ":" in head else name for name in names for head in [name.partition("@")[0]]]
    if len(set(heads)) == len(set(names)):  # module:factory@WEIGHTS
        names = heads
    parts = [[part for part in name.replace("\\", "/").split("/") if part] or [name] for name in names]
    distinct = len(set(names))
    short = list(names)
    for depth in range(1, max(map(len, parts), default=1) + 1):
        short = ["/".join(p[-depth:]) for p in parts]
        if len(set(short)) == distinct:
            break
    seen: Counter[str] = Counter()
    out = []
    for name in short:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out
