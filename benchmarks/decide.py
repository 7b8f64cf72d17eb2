"""Does the promise of a threshold hold, what does the search cost, and how long does choosing take?

    python -m benchmarks.decide [--sets 2000] [--speed]

Confidence is Beta(a, 1) and P(right | confidence c) = c^b, so the true accuracy above every threshold is known. A
promise is broken where the true accuracy of the accepted is below what was asked. "Without correction" takes the
boldest candidate whose own exact bound holds: the same bound without the price of the search, without its guarantee.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

import calibrant
from calibrant.decisions.threshold import STARTS, Ordered, binomial_p, candidates

DELTA = 0.05
SETTINGS = (
    (300, 8, 1.0, 0.9),
    (1000, 8, 1.0, 0.9),
    (1000, 4, 2.0, 0.9),
    (5000, 8, 1.0, 0.95),
    (5000, 4, 1.0, 0.95),
    (5000, 4, 2.0, 0.9),
)


def accuracy(t: float, a: float, b: float) -> float:
    return float(a / (a + b) * (1 - t ** (a + b)) / (1 - t**a))


def row(n: int, a: float, b: float, asked: float, sets: int) -> str:
    rng = np.random.default_rng(n)
    broken = broken_without = none = 0
    coverage, kept, kept_without = [], [], []
    for _ in range(sets):
        c = rng.beta(a, 1, n)
        items = Ordered.of(c, (rng.random(n) > c**b).astype(float))
        found = items.choose(1 - asked, DELTA)
        if found.count:
            kept.append(accuracy(found.threshold, a, b))
            broken += kept[-1] < asked
        none += not found.count
        coverage.append(1 - found.threshold**a if found.count else 0.0)
        every = candidates(items.confidence, len(STARTS))
        alone = np.flatnonzero(binomial_p(items.total[every.count], every.count, 1 - asked) <= DELTA)
        if len(alone):
            kept_without.append(accuracy(float(every.threshold[alone].min()), a, b))
            broken_without += kept_without[-1] < asked
    shares = (
        broken / sets,
        broken_without / sets,
        none / sets,
        np.mean(coverage),
        np.mean(kept),
        np.mean(kept_without),
    )
    return f"| {n:,} | Beta({a}, 1), c^{b:g} | {asked:.0%} | " + " | ".join(f"{100 * s:.1f}%" for s in shares) + " |"


def seconds(work: Callable[[], object], times: int = 3) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def speed() -> None:
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(1_000_000, 10, generator=g)
    p = calibrant.predictions(z, torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0])
    panel = seconds(lambda: calibrant.evaluate(p, intervals=False))
    print(f"\n1,000,000 × 10; the point panel takes {panel:.2f} s\n\n| rule | seconds | × the panel |\n|---|---:|---:|")
    for name, goal in {
        "accuracy 0.9": {"accuracy": 0.9},
        "accuracy 0.9 by class": {"accuracy": 0.9, "by": "class"},
        "lac sets": {"set_coverage": 0.9},
        "aps sets": {"set_coverage": 0.9, "method": "aps"},
    }.items():
        took = seconds(lambda goal=goal: calibrant.decide(p, **goal))  # type: ignore[misc]
        print(f"| {name} | {took:.2f} | {took / panel:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=2000, help="simulated calibration sets in each setting")
    parser.add_argument("--speed", action="store_true", help="time the choice of rules instead")
    asked = parser.parse_args()
    if asked.speed:
        speed()
        return
    print("| n | confidence, right | asked | broken | broken without correction | no threshold | accepted | "
          "accuracy | accuracy without correction |")  # fmt: skip
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for each in SETTINGS:
        print(row(*each, asked.sets), flush=True)


if __name__ == "__main__":
    main()
