"""Do the intervals of aggregates over corruptions, of sequences and of OOD detection cover 95%? Simulated trials.

    python -m benchmarks.coverage_shift --trials 200          # writes docs/coverage_shift.md; a quarter of an hour

Corruptions: an item of class y has, under type c at severity s, the logits z = T · a · x with x ~ N(a · e_y, 1). The
signal a falls with the severity, and all cells of an item share most of the noise in x. T = 1 is calibrated (the
posterior itself), T > 1 overconfident. True values are those of a population of 400,000 items. Sequences: the noise of
such an item drifts from frame to frame. OOD: two such populations, one less certain. Each trial draws N items (N from
each population) and checks whether the true value is in the interval.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.side_by_side import flagged, options
from calibrant.diagnostics.stress.analysis import steadiness
from calibrant.functional import novelty
from calibrant.functional.inputs import predictions
from calibrant.functional.scores import Scores, reduce
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.corruption import CorruptionReport, Key, corruption_report
from calibrant.metrics.entropy_divergence import Binning
from calibrant.metrics.ood import METRICS, ood
from calibrant.types import Estimate

TYPES, SEVERITIES, CLASSES = 3, (1, 2, 3, 4, 5), 10
SIZES = (500, 2000, 10000)
TRUTHS = {"calibrated": 1.0, "overconfident": 1.6}
"""Name of the world → temperature."""
FOREIGN = {"far": (3.0, 1.5), "near": (3.0, 2.7), "equal": (3.0, 3.0)}
"""Name of the world → the signal of the items inside and outside."""
TABLES = {"corruptions": TRUTHS, "sequences": ("",), "foreign": FOREIGN}
Job = tuple[str, str, int, int, int, int]
"""Table, name of the world, N, trials, replicates, seed."""
POPULATION = 400_000
REFERENCE = 1.6  # the reference's temperature; its ECEs are divided by, so they must not be 0
FRAMES, KEPT = 8, 0.95  # frames of a sequence, and how much of the noise the next frame keeps
GIVEN, RATIO = "mcece", "mcece as a ratio of two populations"
OUT = Path(__file__).parents[1] / "docs" / "coverage_shift.md"


def cells(n: int, temperature: float, generator: torch.Generator, reference: bool = False) -> dict[Key, Scores]:
    """N items in every cell; the reference is a weaker predictor of the same items."""
    y = torch.randint(CLASSES, (n,), generator=generator)
    shared = torch.randn(n, CLASSES, generator=generator)
    out = {}
    for c in range(TYPES):
        for s in SEVERITIES:
            signal = (3.6 - 0.35 * s - 0.2 * c) * (0.8 if reference else 1.0)
            noise = math.sqrt(0.7) * shared + math.sqrt(0.3) * torch.randn(n, CLASSES, generator=generator)
            x = signal * torch.nn.functional.one_hot(y, CLASSES) + noise
            out[f"type{c}", s] = reduce(predictions(temperature * signal * x, y), classwise=False)
    return out


def both(n: int, temperature: float, seed: int) -> tuple[dict[Key, Scores], dict[Key, Scores]]:
    """The model and the reference on the same items, because one seed draws the same classes and shared noise."""
    model = cells(n, temperature, torch.Generator().manual_seed(seed))
    return model, cells(n, REFERENCE, torch.Generator().manual_seed(seed), reference=True)


def corruption_rows(n: int, temperature: float, trials: int, replicates: int, seed: int) -> dict[str, float]:
    """Aggregate → percent of trials whose interval holds the true value."""
    truth = corruption_report(*both(POPULATION, temperature, 7))
    true = {name: e.value for name, e in _named(truth).items()}
    true[RATIO] = true[GIVEN]
    hits = dict.fromkeys(true, 0)
    for trial in range(trials):
        report = corruption_report(
            *both(n, temperature, 1_000_003 * seed + trial), resampling=Resampling(trial, replicates)
        )
        found, held = _named(report), true | _given(truth, report)
        for name, estimate in {**found, RATIO: found[GIVEN]}.items():
            hits[name] += estimate.low - 1e-9 <= held[name] <= estimate.high + 1e-9
    return {name: 100 * hit / trials for name, hit in hits.items()}


def _given(truth: CorruptionReport, report: CorruptionReport) -> dict[str, float]:
    """mCECE and cECE of the population, relative to the reference's ECEs as measured in this trial."""
    below = {c: row["ece"].value / row["cece"].value for c, row in report.by_type.items()}
    each = {c: truth.by_type[c]["ece"].value / below[c] for c in below}
    return {GIVEN: sum(each.values()) / len(each), "cece, one type": each["type1"]}


def _named(report: CorruptionReport) -> dict[str, Estimate]:
    rows = {**report.means, **report.normalised}
    rows |= {f"{name}, severity 1": e for name, e in report.by_severity[1].items()}
    rows |= {f"{name}, severity 5": e for name, e in report.by_severity[5].items()}
    return rows | {f"{name}, one type": e for name, e in report.by_type["type1"].items()}


def sequences(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Items whose noise drifts: logits [N, T, K] and labels, in the format of a stress cell."""
    y = torch.randint(CLASSES, (n,), generator=generator)
    mark, x = 3.0 * torch.nn.functional.one_hot(y, CLASSES), torch.randn(n, CLASSES, generator=generator)
    frames = []
    for _ in range(FRAMES):
        frames.append(3.0 * (mark + x))
        x = KEPT * x + math.sqrt(1 - KEPT**2) * torch.randn(n, CLASSES, generator=generator)
    return {"logits": torch.stack(frames, 1), "labels": y}


def sequence_rows(n: int, trials: int, replicates: int, seed: int) -> dict[str, float]:
    """The same for consistency, cross-entropy consistency, relative confidence and flip rate (SS Eq. 37–39)."""
    true = steadiness("rotate", sequences(POPULATION, torch.Generator().manual_seed(7)), None)
    hits = dict.fromkeys(true, 0)
    for trial in range(trials):
        arrays = sequences(n, torch.Generator().manual_seed(1_000_003 * seed + trial))
        for name, estimate in steadiness("rotate", arrays, Resampling(trial, replicates)).items():
            hits[name] += estimate.low - 1e-9 <= true[name].value <= estimate.high + 1e-9
    return {name: 100 * hit / trials for name, hit in hits.items()}


def outside(n: int, signal: float, generator: torch.Generator) -> Tensor:
    y = torch.randint(CLASSES, (n,), generator=generator)
    return signal * (signal * torch.nn.functional.one_hot(y, CLASSES) + torch.randn(n, CLASSES, generator=generator))


def ood_rows(n: int, signals: tuple[float, float], trials: int, replicates: int, seed: int) -> dict[str, float]:
    """The same for AUROC, AUPR and FPR95 of the entropy, and for the divergence of entropies."""

    def sets(size: int, seed: int) -> list[object]:
        generator = torch.Generator().manual_seed(seed)
        return [predictions(z, z.argmax(1)) for z in (outside(size, s, generator) for s in signals)]

    population = sets(POPULATION, 7)
    true = {m: e.value for m, e in ood(*population, scores=["entropy"], intervals=False)["entropy"].items()}
    edges = novelty.entropy_edges(CLASSES, Binning().bins)
    shares = [novelty.histogram(novelty.entropy(p.logits), edges) / POPULATION for p in population]
    if signals[0] == signals[1]:
        shares[1] = shares[0]  # equal populations, not two draws from one
    true["entropy_kl"] = float(novelty.symmetrised_kl(shares[0] * n, shares[1] * n, Binning().smoothing))
    hits = dict.fromkeys(true, 0)
    for trial in range(trials):
        report = ood(*sets(n, 1_000_003 * seed + trial), scores=["entropy"], seed=trial, replicates=replicates)
        for name, estimate in {**report["entropy"], "entropy_kl": report.entropy_kl}.items():
            hits[name] += estimate.low - 1e-9 <= true[name] <= estimate.high + 1e-9
    assert set(METRICS) <= set(hits)
    return {name: 100 * hit / trials for name, hit in hits.items()}


def table(columns: dict[str, dict[str, float]], first: str) -> list[str]:
    lines = ["| " + " | ".join([first, *columns]) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in next(iter(columns.values())):
        lines.append(f"| {name} | " + " | ".join(flagged(row[name]) for row in columns.values()) + " |")
    return lines


def column(job: Job) -> dict[str, float]:
    """One column of one table."""
    torch.set_num_threads(1)
    table, words, n, trials, replicates, seed = job
    if table == "corruptions":
        return corruption_rows(n, TRUTHS[words], trials, replicates, seed)
    if table == "sequences":
        return sequence_rows(n, 2 * trials, replicates, seed)
    return ood_rows(n, FOREIGN[words], 2 * trials, replicates, seed)


def main() -> None:
    a = options(__doc__, trials=200, replicates=400, sizes=",".join(map(str, SIZES)), seed=1, processes=1, out=str(OUT))
    sizes = [int(n) for n in a.sizes.split(",")]
    asked = [(t, words) for t, known in TABLES.items() for words in known]
    jobs: list[Job] = [(*one, n, a.trials, a.replicates, a.seed) for one in asked for n in sizes]
    tables: dict[str, Columns] = {name: {} for name in TABLES}
    with ProcessPoolExecutor(a.processes) as pool:
        for (name, words, n, *_), found in zip(jobs, pool.map(column, jobs), strict=True):
            tables[name][f"{words}, N={n:,}".removeprefix(", ")] = found
            print(name, words, n, found, flush=True)
    Path(a.out).write_text(page(*tables.values(), a))


Columns = dict[str, dict[str, float]]


def page(shifted: Columns, moving: Columns, foreign: Columns, a: argparse.Namespace) -> str:
    noise = 196 * math.sqrt(0.95 * 0.05 / a.trials)
    return "\n".join(
        [
            "# Coverage under shift",
            "",
            "Share of trials, in percent, in which the nominal 95% interval holds the true value, made by",
            "",
            f"    python -m benchmarks.coverage_shift --trials {a.trials} --replicates {a.replicates} --seed {a.seed}",
            "",
            f"{a.trials} trials a cell, so a cell is known to ±{noise:.1f}. ⚠ below 90, ↑ above 99.",
            "",
            "## Aggregates over corruptions",
            "",
            f"{TYPES} types × {len(SEVERITIES)} severities of the same items, 70% of the noise shared by its cells;"
            " the reference is a weaker, overconfident model on the same items.",
            "",
            f"`{GIVEN}` and `cece` take the reference's ECEs as measured, and so do their true values here. The last"
            " row reads them as ratios of two populations instead: the interval does not contain the reference's own"
            " noise, nor the bias that noise gives to a small ECE.",
            "",
            *table(shifted, "aggregate"),
            "",
            "## Sequences",
            "",
            f"{FRAMES} frames; each keeps {100 * KEPT:.0f}% of the noise of the one before. Twice as many trials.",
            "",
            *table(moving, "metric"),
            "",
            "## Telling out-of-distribution items from familiar ones, by entropy",
            "",
            "N items in each set, and twice as many trials. `entropy_kl` of equal populations is 0, the boundary:"
            " its interval holds 0 whenever the lower end is 0, so coverage there may exceed 99%.",
            "",
            *table(foreign, "metric"),
            "",
        ]
    )


if __name__ == "__main__":
    main()
