"""The race's cache → docs/race.md: for each set our best against the best peer, paired; then every method."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.side_by_side import table
from calibrant.files.paths import visible

PEERS = ("probmetrics", "netcal")
ROUNDING = 1e-5
"""Nats; float32 inside a peer moves the same optimum by this much."""
COLUMNS = ("nll", "brier", "ece", "auroc", "accuracy", "seconds")
HEAD = """# A race on real predictions

Every calibrator of ours against every one of probmetrics 1.3.0 and netcal 1.4.0 that installs, on the same halves of
the same files. Fitted on one half ({n} items), judged on the other, {seeds} a file. Written by

    python -m benchmarks.race --data FOLDER --seeds 2 --skip catboost,lightgbm,kernel

Conventions: NLL in nats, a probability below 1e-30 counts as 1e-30; Brier is the sum over classes; ECE has 15
right-closed bins of the top label's confidence; AUROC is of confidence for correct against wrong; seconds are processor
time of the fit alone, on one thread. Peers get the softmax in float64. `auto` sees the calibration half only and has
{budget} seconds. Best of ours and best peer are picked on the test half, ours from {own} candidates and theirs from
{peers}, so both are flattered, ours the more; `auto` is not.
"""


@dataclass(frozen=True)
class Cell:
    """One method on one set: rows by seed, and each item's loss averaged over the seeds that tested it."""

    rows: list[dict[str, Any]]
    loss: dict[int, float]

    @property
    def chosen(self) -> str:
        return ", ".join(sorted({r["chosen"] for r in self.rows}))

    def mean(self, name: str) -> float:
        return float(np.mean([r[name] if r[name] is not None else math.nan for r in self.rows]))


def is_peer(method: str) -> bool:
    return method.startswith(PEERS)


def read(cache: Path) -> tuple[dict[str, dict[str, Cell]], dict[str, dict[str, str]]]:
    """(set → method → cell, method → set → why it failed)."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    sums: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    failed: dict[str, dict[str, str]] = defaultdict(dict)
    paths = visible(cache, "*.npz")
    runs = Counter(tuple(p.stem.split("__")[:2]) for p in paths)
    most = {name: max(n for (s, _), n in runs.items() if s == name) for name, _ in runs}
    for path in paths:
        name, seed, _ = path.stem.split("__")
        if runs[name, seed] < 0.9 * most[name]:
            continue  # a seed that was not raced to the end compares nothing
        with np.load(path) as data:
            row = json.loads(str(data["row"]))
            key = (row["set"], row["method"])
            if "failed" in row:
                failed[row["method"]][row["set"]] = row["failed"]
                continue
            rows[key].append(row)
            for item, loss in zip(data["items"].tolist(), data["loss"].tolist(), strict=True):
                sums[key][item].append(loss)
    out: dict[str, dict[str, Cell]] = defaultdict(dict)
    for (name, method), found in rows.items():
        out[name][method] = Cell(found, {i: float(np.mean(v)) for i, v in sums[name, method].items()})
    return out, failed


def paired(a: Cell, b: Cell) -> tuple[float, float]:
    """Mean difference a − b in NLL over the items that both were tested on, and twice its standard error."""
    common = sorted(a.loss.keys() & b.loss.keys())
    d: NDArray[np.float64] = np.array([a.loss[i] - b.loss[i] for i in common])
    return float(d.mean()), 2 * float(d.std() / math.sqrt(len(d)))


def by_set(results: dict[str, dict[str, Cell]]) -> str:
    head = ("set", "K", "best of ours", "NLL", "`auto` chose", "NLL", "best peer", "NLL", "ours − peer", "")
    rows = []
    for name, cells in sorted(results.items()):
        own = {m: c for m, c in cells.items() if not is_peer(m) and m != "auto"}
        peer = {m: c for m, c in cells.items() if is_peer(m)}
        if not own or not peer:
            continue
        mine, theirs = (min(g, key=lambda m: g[m].mean("nll")) for g in (own, peer))
        rows.append([name, own[mine].rows[0]["k"], mine, f"{own[mine].mean('nll'):.4f}"])
        auto = cells.get("auto")
        chosen = ("–", "–") if auto is None else (auto.chosen, f"{auto.mean('nll'):.4f}")
        against = ("–", "") if auto is None else judged(auto, peer[theirs])
        rows[-1] += [*chosen, theirs, f"{peer[theirs].mean('nll'):.4f}", *judged(own[mine], peer[theirs]), *against]
    return table((*head, "auto − peer", ""), rows, " r r r rr r")


def judged(a: Cell, b: Cell) -> tuple[str, str]:
    """The paired difference, and who wins."""
    d, e = paired(a, b)
    word = "win" if d < -e else "tie" if d <= max(e, ROUNDING) else "**loss**"
    return f"{d:+.4f} ± {e:.4f}", word


def by_method(results: dict[str, dict[str, Cell]], failed: dict[str, dict[str, str]], classes: int) -> str:
    """Means over the sets with this many classes; NLL also against temperature scaling on the same sets."""
    chosen = {n: c for n, c in results.items() if next(iter(c.values())).rows[0]["k"] == classes}
    rows = []
    for method in sorted({m for cells in chosen.values() for m in cells}):
        cells = [c[method] for c in chosen.values() if method in c]
        if len(cells) == len(chosen):
            means = {x: float(np.mean([c.mean(x) for c in cells])) for x in COLUMNS}
            means["gain"] = means["nll"] - float(np.mean([c["temperature"].mean("nll") for c in chosen.values()]))
            means["ece"] *= 100
            rows.append((means, method if is_peer(method) else f"**{method}**"))
    shown = ("{nll:.4f}", "{gain:+.4f}", "{brier:.4f}", "{ece:.2f}", "{auroc:.4f}", "{accuracy:.4f}", "{seconds:.3f}")
    lines = [[name, *(f.format(**m) for f in shown)] for m, name in sorted(rows, key=lambda row: row[0]["nll"])]
    head = ("method", "NLL", "− temperature", "Brier", "ECE %", "AUROC", "accuracy", "seconds")
    title = f"### {classes} classes, {len(chosen)} set{'s' if len(chosen) > 1 else ''}"
    bad = {m: sorted({why[s] for s in why if s in chosen}) for m, why in failed.items() if chosen.keys() & why.keys()}
    missing = "; ".join(f"{m} ({', '.join(w)})" for m, w in sorted(bad.items()))
    return f"{title}\n\n{table(head, lines, ' rrrrrrr')}" + (f"\n\nNot in the table: {missing}." if bad else "")


def write(cache: Path, out: Path, budget: float) -> None:
    results, failed = read(cache)
    if not results:
        return
    every = [r for cells in results.values() for c in cells.values() for r in c.rows]
    sizes = sorted({r["n"] for r in every})
    counts = sorted({len({r["seed"] for c in cells.values() for r in c.rows}) for cells in results.values()})
    seeds = " or ".join(map(str, counts)) + (" splits" if counts != [1] else " split")
    names = {m for cells in results.values() for m in cells} - {"auto"}
    own, rivals = len([m for m in names if not is_peer(m)]), len([m for m in names if is_peer(m)])
    head = HEAD.format(own=own, peers=rivals, n=" or ".join(map(str, sizes)), seeds=seeds, budget=f"{budget:g}")
    parts = [
        head.rstrip(),
        "## Ours against the best peer, set by set",
        by_set(results),
        "± is twice the standard error of the paired difference over items. win / loss: beyond it, and beyond 1e-5.",
        (Path(__file__).parent / "race_notes.md").read_text("utf-8").rstrip(),
        "## Every method",
        *(by_method(results, failed, classes) for classes in sorted({r["k"] for r in every})),
    ]
    out.write_text("\n\n".join(parts) + "\n", "utf-8")
