"""The page of `benchmarks.race --auto`: what choosing by `auto` costs, in differences paired by item."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.race_table import Cell, paired, read
from benchmarks.side_by_side import table
from calibrant.posthoc import CALIBRATORS

HEAD = """# What choosing costs

`auto` against every single method, on the same items. Each set is cut in halves by a seed; everything is fitted on at
most {items} items of one half ({many} where there are 100 classes or more) and judged on all of the other; {seeds}.
`auto` sees the calibration items only and has {budget:g} seconds. Written by

    python -m benchmarks.race --auto --data FOLDER --seeds {count}

NLL in nats; of a top-1 set (no K) it is that of "the predicted label is right". ± is twice the standard error of the
paired difference over test items, each item's loss averaged over seeds; it leaves out that another calibration set
could have been drawn. The best single method is picked on the test items themselves, so it is flattered: the cost is
an upper estimate. A method is ahead where the difference is beyond ±. Not blind: that `auto` allows one plain standard
error, and not one and a half, was settled on test halves of the ten-class files, this seed's among them.
"""


def is_single(method: str) -> bool:
    """Whether the method is one calibrator of the table, with any settings."""
    return method.split(" (")[0] in CALIBRATORS


def by_set(results: dict[str, dict[str, Cell]]) -> str:
    """The cost of choosing in each set."""
    head = ("set", "K", "`auto` chose", "NLL", "best single method", "NLL", "auto − best", "auto − temperature")
    rows = []
    for name, cells in results.items():
        auto, best = cells["auto"], min((m for m in cells if is_single(m)), key=lambda m: cells[m].mean("nll"))
        reference = difference(auto, cells["temperature"]) if "temperature" in cells else "–"
        own = (name, auto.rows[0]["k"] or "", auto.chosen, f"{auto.mean('nll'):.4f}")
        rows.append((*own, best, f"{cells[best].mean('nll'):.4f}", difference(auto, cells[best]), reference))
    return table(head, rows, " r r rrr")


def by_method(results: dict[str, dict[str, Cell]]) -> str:
    """`auto` minus each method: the mean over sets with its error, and how often either is ahead."""
    methods = {m for cells in results.values() for m in cells} - {"auto"}
    against = {m: [paired(c["auto"], c[m]) for c in results.values() if m in c] for m in methods}
    hindsight = [
        paired(c["auto"], min((c[m] for m in c if is_single(m)), key=lambda x: x.mean("nll"))) for c in results.values()
    ]
    rows = [row("*the best single method of each set, in hindsight*", hindsight)]
    rows += [row(m, found) for m, found in sorted(against.items(), key=lambda x: -over_sets(x[1])[0])]
    return table(("method", "sets", "auto − method", "`auto` ahead", "method ahead"), rows, " rrrr")


def row(name: str, found: list[tuple[float, float]]) -> tuple[Any, ...]:
    mean, error = over_sets(found)
    ahead, behind = sum(d < -e for d, e in found), sum(d > max(e, 1e-9) for d, e in found)
    return name, len(found), f"{mean:+.4f} ± {error:.4f}", ahead, behind


def over_sets(found: list[tuple[float, float]]) -> tuple[float, float]:
    """The mean of the sets' differences and twice its standard error over test items (not over sets)."""
    return sum(d for d, _ in found) / len(found), math.sqrt(sum(e * e for _, e in found)) / len(found)


def difference(a: Cell, b: Cell) -> str:
    d, e = paired(a, b)
    return f"{d:+.4f} ± {e:.4f}"


def write(cache: Path, out: Path, budget: float, items: int, items_many: int, seeds: int) -> None:
    results = dict(sorted(read(cache)[0].items(), key=lambda found: (found[1]["auto"].rows[0]["k"] is None, found[0])))
    said = "one seed" if seeds == 1 else f"{seeds} seeds"
    with_logits = {n: c for n, c in results.items() if c["auto"].rows[0]["k"] is not None}
    confidences = {n: c for n, c in results.items() if n not in with_logits}
    head = HEAD.format(items=items, many=items_many, seeds=said, budget=budget, count=seeds)
    parts = [head.rstrip(), "## Set by set", by_set(results)]
    for title, some in (("logits", with_logits), ("top-1 confidences", confidences)):
        if some:
            parts += [f"## Method by method: sets of {title}", by_method(some)]
    out.write_text("\n\n".join(parts) + "\n", "utf-8")
