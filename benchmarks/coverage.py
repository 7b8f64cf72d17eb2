"""Do the 95% intervals cover 95%? Trials on simulated populations whose true values are known.

    python -m benchmarks.coverage            # writes docs/coverage.md; about 15 minutes of two cores
    python -m benchmarks.coverage --trials 100 --only ece,ks
    python -m benchmarks.coverage --accuracies 0.97,0.9 --sizes 100,200,300 --targets 0,0.03 \
        --population 100000 --out docs/coverage_few.md   # few errors

A world is a population of items with true class probabilities π. A calibrated predictor predicts π; a miscalibrated
one predicts softmax(log π / T) (or, `bent`, is overconfident above 90% and underconfident below), with T chosen to
reach the wanted ECE. True values are computed on the population from π itself, not from drawn labels. Each trial
draws N items and their labels, evaluates them, and checks whether the true value is in the interval.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.side_by_side import flagged, options
from calibrant.functional.binning import equal_width
from calibrant.functional.scores import Scores, reduce
from calibrant.metrics import METRICS
from calibrant.metrics.conventions import BINS, Resampling
from calibrant.metrics.evaluate import evaluate_scores
from calibrant.metrics.panel import Panel
from calibrant.types import Predictions

TARGETS = (0.0, 0.01, 0.03, 0.1)
SIZES = (500, 2000, 10000)
MARGINS = {0.85: 6.5, 0.9: 7.66, 0.97: 10.25}
"""Accuracy → the mean margin of the top logit that gives it."""
CLASSES = 10
POPULATION = 400_000
OUT = Path(__file__).parents[1] / "docs" / "coverage.md"


Key = tuple[str, float, float, int]
"""Shape, accuracy, ECE, N."""
Results = dict[Key, dict[str, tuple[float, float, float, float]]]


@dataclass(frozen=True, eq=False)
class World:
    """The predictor's logits and the true class probabilities pi of a whole population."""

    logits: Tensor
    pi: Tensor


@lru_cache(2)  # the sizes of one world follow each other
def world(target: float, shape: str, accuracy: float = 0.85, size: int = POPULATION, classes: int = CLASSES) -> World:
    """Bisection on T until the population's ECE is the target."""
    generator = torch.Generator().manual_seed(20)
    margin = (MARGINS[accuracy] + 3 * torch.randn(size, generator=generator, dtype=torch.float64)).abs()
    z = 1.5 * torch.randn(size, classes, generator=generator, dtype=torch.float64)
    z.scatter_add_(1, torch.randint(classes, (size, 1), generator=generator), margin[:, None])
    pi = torch.softmax(z, 1)
    if target == 0:
        return World(z, pi)
    low, high = 0.1, 1.0  # T < 1 sharpens: overconfident
    sure = pi.amax(1, keepdim=True) > 0.9
    few = slice(0, size // 5)  # enough to find T; the truth is computed on all

    def said(t: float, part: slice) -> Tensor:
        return z[part] / t if shape == "temperature" else torch.where(sure[part], z[part] / t, z[part] * t)

    for _ in range(20):
        t = (low + high) / 2
        if float(truth_bins(World(said(t, few), pi[few])).abs().sum()) > target:
            low = t
        else:
            high = t
    return World(said(t, slice(None)), pi)


def truth_bins(w: World) -> Tensor:
    """Population gaps δ_b of the top label."""
    confidence, top = torch.softmax(w.logits, 1).max(1)
    right = w.pi.gather(1, top[:, None])[:, 0]
    return torch.bincount(equal_width(confidence, BINS), confidence - right, minlength=BINS) / len(right)


@lru_cache(1)
def truths(w: World, names: tuple[str, ...]) -> dict[str, float]:
    """True values: every metric on the population doubled into (item, right) and (item, wrong), weighted by π."""
    p = torch.softmax(w.logits, 1)
    top = p.argmax(1)
    right = w.pi.gather(1, top[:, None])[:, 0]
    n = len(top)
    base = reduce(Predictions(labels=top, logits=w.logits), BINS)
    k = w.pi.shape[1]
    wrong = (top + 1) % k
    twice = Scores(
        labels=torch.cat([top, wrong]),
        predicted=torch.cat([top, top]),
        correct=torch.cat([torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)]),
        confidence=base.confidence.repeat(2),
        log_error=base.log_error.repeat(2),
        log_p_label=None,
        brier=None,
        k=k,
        bins=BINS,
    )
    panel = Panel(twice).reweighted(torch.cat([right, 1 - right])[None])
    special = {
        "nll": lambda: float(-(w.pi * torch.log_softmax(w.logits, 1)).sum(1).mean()),
        "brier": lambda: float((p.square().sum(1) - 2 * (p * w.pi).sum(1) + 1).mean()),
        "accuracy": lambda: float(right.mean()),
        "ece_classwise": lambda: _classwise(p, w.pi),
        "ece_debiased": lambda: float(METRICS["ece"](panel)),
    }
    return {m: special[m]() if m in special else float(METRICS[m](panel)) for m in names}


def _classwise(p: Tensor, pi: Tensor) -> float:
    k = p.shape[1]
    key = equal_width(p.reshape(-1), BINS) + BINS * torch.arange(k).repeat(len(p))
    gaps = torch.bincount(key, (p - pi).reshape(-1), minlength=k * BINS)
    return float(gaps.abs().sum() / p.numel())


def largest_gap(w: World, held: Tensor) -> float:
    """ece_max is about the bins that hold items, so its truth is too."""
    confidence = torch.softmax(w.logits, 1).amax(1)
    mass = torch.bincount(equal_width(confidence, BINS), minlength=BINS) / len(confidence)
    return float((truth_bins(w).abs() / mass)[held].max())


def cell(
    job: tuple[str, float, float, int, int, int, tuple[str, ...], int, int],
) -> dict[str, tuple[float, float, float, float]]:
    """Metric → (covered, missed below, missed above) of the trials with an interval, and the share of those."""
    shape, accuracy, target, n, trials, replicates, names, seed, size = job
    torch.set_num_threads(1)
    w = world(target, shape, accuracy, size)
    true = truths(w, names)
    generator = torch.Generator().manual_seed(1_000_003 * seed + n)
    counts = {name: [0, 0, 0, 0] for name in names}
    gap_max = {}
    for trial in range(trials):
        index = torch.randint(len(w.pi), (n,), generator=generator)
        labels = torch.multinomial(w.pi[index], 1, generator=generator)[:, 0]
        scores = reduce(Predictions(labels=labels, logits=w.logits[index]), BINS)
        report = evaluate_scores(scores, metrics=names, resampling=Resampling(1_000_003 * seed + trial, replicates))
        held = tuple(torch.unique(equal_width(scores.confidence, BINS)).tolist())
        if "ece_max" in names and held not in gap_max:
            gap_max[held] = largest_gap(w, torch.tensor(held))
        for name in names:
            e = report[name]
            if e.low is None or e.high is None:
                continue
            value = gap_max[held] if name == "ece_max" else true[name]
            slack = 1e-9
            tally = counts[name]
            tally[0] += e.low - slack <= value <= e.high + slack
            tally[1] += value < e.low - slack
            tally[2] += value > e.high + slack
            tally[3] += 1
    return {k: (a / max(m, 1), b / max(m, 1), c / max(m, 1), m / trials) for k, (a, b, c, m) in counts.items()}


def table(results: Results, names: Sequence[str], keys: Sequence[Key]) -> Iterator[str]:
    head = [f"{'calibrated' if t == 0 else f'ECE {t:g}'}, N={n:,}" for _, _, t, n in keys]
    yield "| metric | " + " | ".join(head) + " |"
    yield "|---" * (len(head) + 1) + "|"
    for name in names:
        yield f"| {name} | " + " | ".join(shown(*results[k][name]) for k in keys) + " |"


def shown(covered: float, below: float, above: float, made: float) -> str:
    """The coverage, with a mark outside 90–99%; in brackets how often there was an interval, if not always."""
    if made < 0.1:
        return "–"
    return flagged(100 * covered) + ("" if made > 0.95 else f" ({100 * made:.0f}%)")


def main() -> None:
    a = options(
        __doc__, trials=400, replicates=400, only="", shapes="temperature", seed=1, processes=1, population=POPULATION,
        out=str(OUT), targets=",".join(map(str, TARGETS)), sizes=",".join(map(str, SIZES)), accuracies="0.85",
    )  # fmt: skip
    names = tuple(a.only.split(",")) if a.only else tuple(METRICS)
    targets, accuracies = ([float(x) for x in given.split(",")] for given in (a.targets, a.accuracies))
    sizes = [int(n) for n in a.sizes.split(",")]
    sections = [(s, accuracy) for s in a.shapes.split(",") for accuracy in accuracies]
    keys = {section: [(*section, t, n) for t in targets for n in sizes] for section in sections}
    jobs = [(*k, a.trials, a.replicates, names, a.seed, a.population) for section in sections for k in keys[section]]
    results: Results = {}
    with ProcessPoolExecutor(a.processes) as pool:
        for job, found in zip(jobs, pool.map(cell, jobs), strict=True):
            results[job[:4]] = found
            print(*job[:4], {k: tuple(round(100 * x, 1) for x in v) for k, v in found.items()}, flush=True)
            done = {section: k for section, k in keys.items() if all(key in results for key in k)}
            if done:
                Path(a.out).write_text(page(results, names, done, a))


def page(
    results: Results, names: Sequence[str], sections: dict[tuple[str, float], list[Key]], a: argparse.Namespace
) -> str:
    noise = 196 * math.sqrt(0.95 * 0.05 / a.trials)
    given = ("accuracies", "sizes", "targets", "shapes", "trials", "replicates", "seed", "population")
    command = " ".join([*(f"--{name} {getattr(a, name)}" for name in given), f"--out docs/{Path(a.out).name}"])
    lines = [
        "# Coverage of the intervals",
        "",
        "Share of trials, in percent, in which the nominal 95% interval holds the true value, made by",
        "",
        f"    python -m benchmarks.coverage {command}",
        "",
        f"{a.trials} trials a cell, so a cell is known to ±{noise:.1f}. ⚠ below 90, ↑ above 99 (wide, not wrong).",
        "In brackets: the share of trials that gave an interval, if not all did; – if hardly any did.",
        PREAMBLE,
    ]
    for (shape, accuracy), keys in sections.items():
        lines += ["", f"## {TITLES[shape]}, accuracy {accuracy:g}", "", *table(results, names, keys)]
    return "\n".join(lines) + "\n"


TITLES = {
    "temperature": "Overconfident everywhere: a wrong temperature",
    "bent": "Overconfident above 90%, underconfident below",
}

PREAMBLE = """
The true value is the population's value *with these bins*; for `ece_max`, with the bins that hold items. A true value
at the boundary (the ECE of a calibrated model is 0; `ece_under` of an overconfident model is 0) is in the interval
whenever the lower end is 0. Coverage there may exceed 99%, because every interval that contains the boundary covers
it. The methods were chosen on trials with seed 0; these tables are from other trials in the same kind of world.
`calibrant.metrics.intervals.CAVEATS` lists where intervals cover less or more than 95%, and reports repeat it.
[coverage_few.md](coverage_few.md) is about small sets with few errors, by the same command with other sizes and
accuracies, [coverage_shift.md](coverage_shift.md) about corruptions, sequences and OOD detection, and
[coverage_paired.md](coverage_paired.md) about differences between two predictors."""

if __name__ == "__main__":
    main()
