"""Does the 95 % interval of a difference of calibration errors cover 95 %, and is a real difference called?

    python -m benchmarks.coverage_paired --processes 2          # writes docs/coverage_paired.md
    python -m benchmarks.coverage_paired --trials 50 --only ece,ks --pairs "calibrated / ×1.5"

A world is a population with true class probabilities π = softmax(z); both predictors see the same items,
b against a. True values are computed on the population from π itself (`benchmarks.coverage.truths`).
Each trial draws N items and their labels and asks `differences` for the calibration metrics.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.coverage import World, largest_gap, truths
from calibrant.functional.binning import equal_width
from calibrant.functional.scores import reduce
from calibrant.metrics import METRICS
from calibrant.metrics.compare import differences
from calibrant.metrics.conventions import BINS, Resampling
from calibrant.metrics.table import Panel
from calibrant.types import Predictions

OUT = Path(__file__).parents[1] / "docs" / "coverage_paired.md"
NAMES = tuple(m.name for m in METRICS.values() if m.family == "calibration" and m.name not in ("gap", "ece_debiased"))
"""`ece_debiased` has the interval of `ece`."""

Jitter = Callable[[float], Tensor]

PAIRS: dict[str, Callable[[Tensor, Jitter], tuple[Tensor, Tensor]]] = {
    "calibrated / jittered": lambda z, e: (z, z + e(0.02)),
    "calibrated / ×1.1": lambda z, e: (z, 1.1 * z + e(0.02)),
    "calibrated / ×1.5": lambda z, e: (z, 1.5 * z + e(0.02)),
    "×1.3 / jittered": lambda z, e: (1.3 * z, 1.3 * z + e(0.02)),
    "twins ×1.3": lambda z, e: (1.3 * z + e(0.3), 1.3 * z + e(0.3)),
    "×1.3 / ×1.6": lambda z, e: (1.3 * z + e(0.1), 1.6 * z + e(0.1)),
    "×1.3 / ×0.77": lambda z, e: (1.3 * z, z / 1.3),
}
"""Logits of a and b from those of π; e(s) is fresh noise of standard deviation s."""

_SOME = ("calibrated / ×1.1", "calibrated / ×1.5", "twins ×1.3")
WORLDS: dict[tuple[int, int], tuple[str, ...]] = {
    (5, 800): tuple(PAIRS),
    (5, 5000): _SOME,
    (5, 300): _SOME,
    (2, 800): _SOME[1:],
    (100, 800): _SOME[1:],
}
"""(classes, items) → pairs."""

EQUAL = ("calibrated / jittered", "×1.3 / jittered", "twins ×1.3")
POWER = ((1000, 1.25), (1000, 1.5), (10_000, 1.1), (10_000, 1.25))
"""(items, by how much the logits of a are too large; b is the same, repaired)."""


@dataclass(frozen=True)
class Tally:
    """Shares of trials: truth inside, truth below, truth above, called at 5 %; and the mean width."""

    inside: float
    below: float
    above: float
    called: float
    width: float


def population(classes: int, pair: Callable[[Tensor, Jitter], tuple[Tensor, Tensor]]) -> tuple[World, World]:
    size = 50_000
    generator = torch.Generator().manual_seed(21)
    z = 2 * torch.randn(size, classes, generator=generator, dtype=torch.float64)
    if classes > 10:  # many classes of like size would leave no top label
        z.scatter_add_(1, torch.randint(classes, (size, 1), generator=generator), torch.full_like(z[:, :1], 6.0))

    def jitter(s: float) -> Tensor:
        return s * torch.randn(z.shape, generator=generator, dtype=torch.float64)

    pi, (a, b) = torch.softmax(z, 1), pair(z, jitter)
    return World(a, pi), World(b, pi)


def cell(job: tuple[str, int, int, int, int, tuple[str, ...], int]) -> dict[str, Tally]:
    name, classes, n, trials, replicates, metrics, seed = job
    torch.set_num_threads(1)
    factor = float(name[1:].split(" / ")[0]) if name.endswith("repaired") else 1.0
    both = population(classes, PAIRS[name] if name in PAIRS else lambda z, e: (factor * z, z))
    true = [truths(w, [m for m in metrics if m != "ece_max"]) for w in both]
    generator = torch.Generator().manual_seed(1_000_003 * seed + 7919 * classes + n)
    found: dict[str, list[tuple[float, float, float, bool]]] = {m: [] for m in metrics}
    largest: tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], float]] = ({}, {})
    for trial in range(trials):
        index = torch.randint(len(both[0].pi), (n,), generator=generator)
        labels = torch.multinomial(both[0].pi[index], 1, generator=generator)[:, 0]
        sets = [Predictions(labels=labels, logits=w.logits[index]) for w in both]
        panels = [Panel(reduce(p, BINS)) for p in sets]
        asked = [METRICS[m] for m in metrics]
        resampling = Resampling(1_000_003 * seed + trial, replicates)
        for row in differences((sets[0], sets[1]), (panels[0], panels[1]), asked, resampling):
            assert row.low is not None and row.high is not None and row.p is not None
            a, b = (_true(row.metric, *known) for known in zip(both, true, panels, largest, strict=True))
            found[row.metric].append((b - a, row.low, row.high, row.p < 0.05))
    return {m: _tally(f) for m, f in found.items()}


def _true(metric: str, w: World, known: dict[str, float], panel: Panel, largest: dict[tuple[int, ...], float]) -> float:
    """`ece_max` is about the bins that hold items, so its truth is too."""
    if metric != "ece_max":
        return known[metric]
    held = torch.unique(equal_width(panel.scores.confidence, BINS))
    key = tuple(held.tolist())
    if key not in largest:
        largest[key] = largest_gap(w, held)
    return largest[key]


def _tally(found: Sequence[tuple[float, float, float, bool]]) -> Tally:
    n, slack = len(found), 1e-9
    below = sum(t < low - slack for t, low, _, _ in found) / n
    above = sum(t > high + slack for t, _, high, _ in found) / n
    called, width = sum(c for *_, c in found) / n, sum(high - low for _, low, high, _ in found) / n
    return Tally(1 - below - above, below, above, called, width)


def table(names: Sequence[str], head: Sequence[str], shown: Callable[[str, int], str]) -> Iterator[str]:
    yield "| metric | " + " | ".join(head) + " |"
    yield "|---" * (len(head) + 1) + "|"
    for name in names:
        yield f"| {name} | " + " | ".join(shown(name, i) for i in range(len(head))) + " |"


def _covered(t: Tally) -> str:
    mark = "" if 0.90 <= t.inside <= 0.99 else " ⚠" if t.inside < 0.90 else " ↑"
    return f"{100 * t.inside:.1f}{mark}"


def page(results: dict[tuple[str, int, int], dict[str, Tally]], names: Sequence[str], a: argparse.Namespace) -> str:
    command = f"--trials {a.trials} --replicates {a.replicates} --seed {a.seed}"
    lines = PREAMBLE.format(command=command, trials=a.trials, noise=196 * math.sqrt(0.95 * 0.05 / a.trials)).split("\n")
    for classes, n in WORLDS:
        pairs = [p for p in PAIRS if (p, classes, n) in results]
        if pairs:
            cells = [results[p, classes, n] for p in pairs]
            lines += ["", f"## K = {classes}, N = {n:,}", ""]
            lines += table(names, pairs, lambda m, i, cells=cells: _covered(cells[i][m]))  # type: ignore[misc]
    equal = [(p, k, n) for k, n in WORLDS for p in EQUAL if (p, k, n) in results]
    if equal:
        lines += [
            "",
            "## Equal predictors that are called different, percent of trials (p < 0.05, one metric alone)",
            "",
        ]
        head = [f"{p}, K={k}, N={n:,}" for p, k, n in equal]
        lines += table(names, head, lambda m, i: f"{100 * results[equal[i]][m].called:.1f}")
    power = [k for k in results if k[0].endswith("repaired")]
    if power:
        lines += ["", "## Repaired temperatures that are called better, percent of trials (p < 0.05)", ""]
        head = [f"{p}, N={n:,}" for p, _, n in power]
        lines += table(names, head, lambda m, i: f"{100 * results[power[i]][m].called:.1f}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--replicates", type=int, default=300)
    parser.add_argument("--only", default="")
    parser.add_argument("--pairs", default="")
    parser.add_argument("--seed", type=int, default=3, help="of the trials; the method was chosen on 0 to 2")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    a = parser.parse_args()
    names = tuple(a.only.split(",")) if a.only else NAMES
    power = [(f"×{s:g} / repaired", 5, n) for n, s in POWER]
    keys = [(p, k, n) for (k, n), pairs in WORLDS.items() for p in pairs] + power
    keys = [key for key in keys if not a.pairs or key[0] in a.pairs.split(",")]
    results: dict[tuple[str, int, int], dict[str, Tally]] = {}
    with ProcessPoolExecutor(a.processes) as pool:
        trials = [max(a.trials // 4, 1) if key in power else a.trials for key in keys]
        jobs = [(*key, t, a.replicates, names, a.seed) for key, t in zip(keys, trials, strict=True)]
        for key, found in zip(keys, pool.map(cell, jobs), strict=True):
            results[key] = found
            print(*key, {m: _said(t) for m, t in found.items()}, flush=True)
            a.out.write_text(page(results, names, a))


def _said(t: Tally) -> tuple[float, ...]:
    return (*(round(100 * x, 1) for x in (t.inside, t.below, t.above, t.called)), round(t.width, 4))


PREAMBLE = """# Coverage of differences

Share of trials, in percent, in which the nominal 95 % interval that `compare` gives for the *difference* of two
predictors' calibration errors, b − a on the same items, holds the true difference, made by

    python -m benchmarks.coverage_paired {command}

{trials} trials a cell, so a cell is known to ±{noise:.1f}. ⚠ below 90, ↑ above 99 (wide, not wrong).

A pair is "a / b": the logits of each are those of the true probabilities times a factor (×1.3 is overconfident,
×0.77 too timid); *jittered* is a with noise of standard deviation 0.02 on its logits, *twins* have noise of 0.3 each.
The method was chosen on trials of seeds 0 to 2; the tables are of other trials, in the same worlds. Where both
predictors are nearly calibrated, or nearly the same, each end allows for the worst that noise can hide, and coverage
exceeds 99 %. Repaired temperatures are asked about in a quarter of the trials. `ece_debiased` has the interval of
`ece`."""

if __name__ == "__main__":
    main()
