"""What choosing costs: `auto` against every single method on the same halves of real predictions, paired by item.

    python -m benchmarks.race_auto --data FOLDER          # writes docs/race_auto.md

Files with logits (or probs) and labels, and files of top-1 confidences (`NAME__label, NAME__pred, NAME__conf`), where
NLL is that of "the predicted label is right". A seed cuts each set in halves: everything is fitted on items of the one
(at most --items, of 100 classes and more --items-many) and judged on the other. Results are kept under --cache, so a
stopped race goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import calibrant
from benchmarks.race import load, ours, race, sets
from benchmarks.race_table import Cell, paired, read
from calibrant.files.paths import visible
from calibrant.posthoc import CALIBRATORS
from calibrant.types import Predictions

HEAD = """# What choosing costs

`auto` against every single method, on the same items. Each set is cut in halves by a seed; everything is fitted on at
most {items} items of one half ({many} where there are 100 classes or more) and judged on all of the other; {seeds}.
`auto` sees the calibration items only and has {budget:g} seconds. Written by

    python -m benchmarks.race_auto --data FOLDER --seeds {count}

NLL in nats; of a top-1 set (no K) it is that of "the predicted label is right". ± is twice the standard error of the
paired difference over test items, each item's loss averaged over seeds; it leaves out that another calibration set
could have been drawn. The best single method is picked on the test items themselves, so it is flattered: the cost is
an upper estimate. A method is ahead where the difference is beyond ±. Not blind: that `auto` allows one plain standard
error, and not one and a half, was settled on test halves of the ten-class files, this seed's among them.
"""


def every_set(folder: Path) -> Iterator[tuple[str, Callable[[], Predictions]]]:
    for name, path in sets(folder):
        yield name, partial(load, path)
    for path in visible(folder, "*.npz"):
        with np.load(path) as data:
            names = sorted({key.removesuffix("__conf") for key in data if key.endswith("__conf")})
        for name in names:
            yield name, partial(top1, path, name)


def top1(path: Path, name: str) -> Predictions:
    with np.load(path) as data:
        label, predicted = (torch.from_numpy(data[f"{name}__{key}"].astype(np.int64)) for key in ("label", "pred"))
        confidence = torch.from_numpy(data[f"{name}__conf"].astype(np.float64))
    return calibrant.predictions(labels=label, predicted=predicted, confidence=confidence)


def is_single(method: str) -> bool:
    """One calibrator of the table, with any of its settings."""
    return method.split(" (")[0] in CALIBRATORS


def by_set(results: dict[str, dict[str, Cell]]) -> list[str]:
    """The cost of choosing, set by set."""
    lines = [
        "| set | K | `auto` chose | NLL | best single method | NLL | auto − best | auto − temperature |",
        "|---|---:|---|---:|---|---:|---:|---:|",
    ]
    for name, cells in results.items():
        auto = cells["auto"]
        best = min((m for m in cells if is_single(m)), key=lambda m: cells[m].mean("nll"))
        chosen = ", ".join(sorted({r["chosen"] for r in auto.rows}))
        reference = difference(auto, cells["temperature"]) if "temperature" in cells else "–"
        lines.append(
            f"| {name} | {auto.rows[0]['k'] or ''} | {chosen} | {auto.mean('nll'):.4f} | {best} "
            f"| {cells[best].mean('nll'):.4f} | {difference(auto, cells[best])} | {reference} |"
        )
    return lines


def by_method(results: dict[str, dict[str, Cell]]) -> list[str]:
    """`auto` minus each method, the mean over sets with the error of that mean; and how often either is ahead."""
    methods = {m for cells in results.values() for m in cells} - {"auto"}
    against = {m: [paired(c["auto"], c[m]) for c in results.values() if m in c] for m in methods}
    hindsight = [
        paired(c["auto"], min((c[m] for m in c if is_single(m)), key=lambda x: x.mean("nll"))) for c in results.values()
    ]
    lines = [
        "| method | sets | auto − method | `auto` ahead | method ahead |",
        "|---|---:|---:|---:|---:|",
        row("*the best single method of each set, in hindsight*", hindsight),
    ]
    return lines + [row(m, found) for m, found in sorted(against.items(), key=lambda x: -over_sets(x[1])[0])]


def row(name: str, found: list[tuple[float, float]]) -> str:
    mean, error = over_sets(found)
    ahead, behind = sum(d < -e for d, e in found), sum(d > max(e, 1e-9) for d, e in found)
    return f"| {name} | {len(found)} | {mean:+.4f} ± {error:.4f} | {ahead} | {behind} |"


def over_sets(found: list[tuple[float, float]]) -> tuple[float, float]:
    """Mean of the sets' differences, and twice the error that the test items give it: these sets, other items."""
    return sum(d for d, _ in found) / len(found), math.sqrt(sum(e * e for _, e in found)) / len(found)


def difference(a: Cell, b: Cell) -> str:
    d, e = paired(a, b)
    return f"{d:+.4f} ± {e:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("CALIBRANT_DATA", ".")) / "logits")
    parser.add_argument("--cache", type=Path, default=Path("build/race_auto"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--items", type=int, default=5000, help="at most so many to fit on")
    parser.add_argument("--items-many", type=int, default=2000, help="the same where there are 100 classes or more")
    parser.add_argument("--limit", type=int, default=600, help="seconds a fit may take")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds that auto may take")
    parser.add_argument("--only", default="", help="part of a set's name")
    parser.add_argument("--write", type=Path, default=Path("docs/race_auto.md"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.cache.mkdir(parents=True, exist_ok=True)
    runs = ours(given.budget)
    for seed in range(given.seeds):
        for name, read_set in every_set(given.data):
            if given.only in name:
                k = read_set().k
                most = given.items_many if (k or 0) >= 100 else given.items
                usable = {m: r for m, r in runs.items() if k is not None or top1_takes(m)}
                race(name, read_set, seed, usable, given.cache, given.limit, most)
    results = dict(
        sorted(read(given.cache)[0].items(), key=lambda item: (item[1]["auto"].rows[0]["k"] is None, item[0]))
    )
    head = HEAD.format(
        items=given.items,
        many=given.items_many,
        seeds="one seed" if given.seeds == 1 else f"{given.seeds} seeds",
        budget=given.budget,
        count=given.seeds,
    )
    with_logits = {n: c for n, c in results.items() if c["auto"].rows[0]["k"] is not None}
    confidences = {n: c for n, c in results.items() if n not in with_logits}
    parts = [head, "## Set by set", "", *by_set(results)]
    for title, some in (("logits", with_logits), ("top-1 confidences", confidences)):
        if some:
            parts += ["", f"## Method by method: sets of {title}", "", *by_method(some)]
    given.write.write_text("\n".join(parts) + "\n", "utf-8")


def top1_takes(method: str) -> bool:
    name, _, settings = method.partition(" (")
    fits = name in CALIBRATORS and CALIBRATORS[name].takes_top1 and not settings
    return fits or method in ("identity", "auto")


if __name__ == "__main__":
    main()
