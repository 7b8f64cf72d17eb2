"""Does the promise of a threshold hold, what does the search cost, and how long does choosing take?

    python -m benchmarks.decide [--sets 2000] [--speed] [--torchcp] [--mapie]

Confidence is Beta(a, 1) and P(right | confidence c) = c^b. In some rows it is lower inside a dip, so that errors are
rarer at lower confidence, which the proof of the search does not cover. The accuracy above a threshold is an integral.
A promise is broken if the true accuracy of what is accepted is below what was asked for. "Without correction" takes the
lowest threshold whose own exact bound holds, without correcting for the search and so without its guarantee.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

import calibrant
from benchmarks.side_by_side import Call, in_turns, options
from calibrant.decisions.threshold import Ordered, binomial_p, candidates
from calibrant.functional.binomial import Floats

DELTA = 0.05
SETTINGS = (
    (300, 8, 1.0, 0.9),
    (1000, 8, 1.0, 0.9),
    (1000, 4, 2.0, 0.9),
    (5000, 8, 1.0, 0.95),
    (5000, 4, 1.0, 0.95),
    (5000, 4, 2.0, 0.9),
    (1000, 8, 0.1, 0.9, (0.9, 0.96)),
    (5000, 8, 0.1, 0.9, (0.9, 0.96)),
    (5000, 8, 0.1, 0.9, (0.9, 0.968)),
)
"""Items, a, b, the accuracy asked for, and the dip: confidences whose answers are right with probability DIP."""
DIP = 0.75


def right(c: Floats, b: float, dip: tuple[float, float]) -> Floats:
    return np.where((c >= dip[0]) & (c < dip[1]), DIP, c**b)


def truth(a: float, b: float, dip: tuple[float, float]) -> Callable[[float], float]:
    """A function from thresholds to the accuracy of what they accept."""
    c = (np.arange(1_000_000) + 0.5) / 1_000_000
    weight = a * c ** (a - 1)
    above, correct = (np.append(np.cumsum(v[::-1])[::-1], 0) for v in (weight, weight * right(c, b, dip)))

    def accuracy(t: float) -> float:
        i = min(round(t * 1_000_000), 999_999)
        return float(correct[i] / above[i])

    return accuracy


def row(n: int, a: float, b: float, asked: float, dip: tuple[float, float] = (1, 1), *, sets: int) -> str:
    rng = np.random.default_rng(n)
    accuracy = truth(a, b, dip)
    broken = broken_without = none = 0
    coverage, kept, kept_without = [], [], []
    for _ in range(sets):
        c = rng.beta(a, 1, n)
        items = Ordered.of(c, (rng.random(n) > right(c, b, dip)).astype(float))
        found = items.choose(1 - asked, DELTA)
        if found.count:
            kept.append(accuracy(found.threshold))
            broken += kept[-1] < asked
        none += not found.count
        coverage.append(1 - found.threshold**a if found.count else 0.0)
        every = candidates(items.confidence, 1 - asked, DELTA)
        assert every is not None
        alone = np.flatnonzero(binomial_p(items.total[every.count], every.count, 1 - asked) <= DELTA)
        if len(alone):
            kept_without.append(accuracy(float(every.threshold[alone].min())))
            broken_without += kept_without[-1] < asked
    shares = (
        broken / sets,
        broken_without / sets,
        none / sets,
        np.mean(coverage),
        np.mean(kept),
        np.mean(kept_without),
    )
    curve = f"c^{b:g}" + ("" if dip[0] == 1 else f", dip {dip[0]:g} to {dip[1]:g}")
    return f"| {n:,} | Beta({a}, 1), {curve} | {asked:.0%} | " + " | ".join(f"{100 * s:.1f}%" for s in shares) + " |"


def cells(sets: int, accuracy: float = 0.9) -> dict[tuple[str, str], float]:
    """(by, cell) → the share of rules by class or by group that break their promise in this cell."""
    kinds = {"0": (400, 8, 1.0), "1": (700, 4, 2.0), "2": (250, 8, 0.5)}
    accuracies = {name: truth(a, b, (1, 1)) for name, (_, a, b) in kinds.items()}
    rng = np.random.default_rng(0)
    broken = {(by, name): 0 for by in ("class", "group") for name in kinds}
    sizes, power = [n for n, _, _ in kinds.values()], [b for _, _, b in kinds.values()]
    cell = np.repeat(np.arange(3), sizes)
    for _ in range(sets):
        c = np.concatenate([rng.beta(a, 1, n) for n, a, _ in kinds.values()])
        wrong = rng.random(len(c)) > c ** np.repeat(power, sizes)
        p = calibrant.predictions(labels=(cell + wrong) % 3, predicted=cell, confidence=c, group=cell)
        for by in ("class", "group"):
            # a rule by class makes its promise about independent items
            rule = calibrant.decide(p if by == "group" else replace(p, group=None), accuracy=accuracy, by=by)
            for name, t in zip(kinds, rule.tensors()["threshold"].tolist(), strict=True):
                broken[by, name] += t <= 1 and accuracies[name](t) < accuracy
    return {key: count / sets for key, count in broken.items()}


def best(work: Call) -> float:
    return min(in_turns([work], 3, clock=time.perf_counter)[0])


def speed() -> None:
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(1_000_000, 10, generator=g)
    p = calibrant.predictions(z, torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0])
    panel = best(lambda: calibrant.evaluate(p, intervals=False))
    print(f"\n1,000,000 × 10; the point panel takes {panel:.2f} s\n\n| rule | seconds | × the panel |\n|---|---:|---:|")
    for name, goal in {
        "accuracy 0.9": {"accuracy": 0.9},
        "accuracy 0.9 by class": {"accuracy": 0.9, "by": "class"},
        "lac sets": {"set_coverage": 0.9},
        "aps sets": {"set_coverage": 0.9, "method": "aps"},
    }.items():
        took = best(lambda goal=goal: calibrant.decide(p, **goal))
        print(f"| {name} | {took:.2f} | {took / panel:.1f} |")


Peer = Callable[[torch.Tensor, torch.Tensor], Callable[[torch.Tensor], object]]
"""Calibration logits and labels → a function from logits to sets [N, K]."""


def torchcp() -> dict[str, Peer]:
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import APS, LAC, RAPS

    def peer(score: object) -> Peer:
        def calibrated(z: torch.Tensor, y: torch.Tensor) -> Callable[[torch.Tensor], object]:
            predictor = SplitPredictor(score)
            predictor.calculate_threshold(z, y, 0.1)
            return predictor.predict_with_logits  # type: ignore[no-any-return]

        return calibrated

    plain = {"randomized": False}
    return {"lac": peer(LAC()), "aps": peer(APS(**plain)), "raps": peer(RAPS(penalty=0.01, kreg=5, **plain))}


def mapie() -> dict[str, Peer]:
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Softmax(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """A scikit-learn classifier whose inputs are logits."""

        def fit(self, z: Floats, y: Floats) -> Softmax:
            self.classes_ = np.arange(z.shape[1])
            return self

        def predict_proba(self, z: Floats) -> Floats:
            return torch.softmax(torch.from_numpy(z), 1).numpy()  # type: ignore[no-any-return]

        def predict(self, z: Floats) -> Floats:
            return z.argmax(1)  # type: ignore[no-any-return]

    def peer(score: str) -> Peer:
        def calibrated(z: torch.Tensor, y: torch.Tensor) -> Callable[[torch.Tensor], object]:
            model = SplitConformalClassifier(Softmax().fit(z.numpy(), y.numpy()), 0.9, score)
            model.conformalize(z.double().numpy(), y.numpy())
            return lambda new: torch.from_numpy(model.predict_set(new.double().numpy())[1][..., 0])

        return calibrated

    return {"lac": peer("lac"), "topk": peer("top_k"), "aps": peer("aps")}


def against(peers: dict[str, Peer], n: int, k: int) -> None:
    """For each peer: the share of set entries that agree with ours, and its time over ours (best of five, in turns)."""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(n, k, generator=g)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
    print(f"{n:,} × {k:,}\n\n| method | entries that disagree | mean size, ours and theirs | their time over ours |")
    print("|---|---:|---:|---:|")
    for method, peer in peers.items():
        theirs = peer(z[: n // 2], y[: n // 2])
        rule = calibrant.decide(z[: n // 2], y[: n // 2], set_coverage=0.9, method=method)
        a, b = rule(z).sets, torch.as_tensor(theirs(z)).bool()
        assert a is not None
        calls: list[Call] = [lambda theirs=theirs: theirs(z), lambda rule=rule: rule(z)]
        slow, fast = map(min, in_turns(calls, 5, clock=time.perf_counter))
        sizes = f"{float(a.sum() / n):.3f}, {float(b.sum() / n):.3f}"
        print(f"| {method} | {int((a != b).sum()):,} of {a.numel():,} | {sizes} | {slow / fast:.1f} |", flush=True)


def main() -> None:
    asked = options(__doc__, sets=2000, speed=False, torchcp=False, mapie=False)
    if asked.torchcp or asked.mapie:
        peers = torchcp() if asked.torchcp else mapie()
        for n, k in ((2000, 8), (10_000, 1000)):
            against(peers, n, k)
        return
    if asked.speed:
        speed()
        return
    print("| n | confidence, right | asked | broken | broken without correction | no threshold | accepted | "
          "accuracy | accuracy without correction |")  # fmt: skip
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for each in SETTINGS:
        print(row(*each, sets=asked.sets), flush=True)  # type: ignore[arg-type]
    print("\nBroken in a class or group: " + ", ".join(f"{by} {c} {s:.1%}" for (by, c), s in cells(asked.sets).items()))


if __name__ == "__main__":
    main()
