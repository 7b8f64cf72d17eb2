"""A race on real predictions: every calibrator of ours, and every one of probmetrics and netcal that is installed.

    python -m benchmarks.race --data FOLDER                # writes docs/race.md
    python -m benchmarks.race --data FOLDER --only cifar10_lenet5 --methods temperature,sms --seeds 1

Each file of FOLDER with logits (or probs) and labels is cut in halves by a seed: fit on one, judged on the other, the
same halves for all. Peers get the softmax in float64. NLL counts a probability below 1e-30 as 1e-30. A method that
raises or runs past its time is a row that says so. Results are kept under --cache, one file a run, so a stopped race
goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import calibrant
from benchmarks.race_peers import SMALL_ONLY, peers
from benchmarks.race_table import write
from calibrant.files import atomic
from calibrant.files.paths import visible
from calibrant.functional.scores import reduce
from calibrant.metrics.evaluate import evaluate_scores
from calibrant.posthoc import CALIBRATORS
from calibrant.posthoc.auto import BENT
from calibrant.posthoc.crossval import loss_of
from calibrant.posthoc.fit import resolve
from calibrant.types import Predictions

METRICS = ("nll", "brier", "ece", "auroc", "accuracy")
Run = Callable[[Predictions, Predictions], tuple[Predictions, float, str]]
"""(calibration, test) → (test after the map, seconds to fit, what was chosen)."""


class TooLong(Exception):
    """A method ran past its time."""


def ours(budget: float) -> dict[str, Run]:
    """Every calibrator of the table with every setting that `auto` tries, its smooth compositions, and `auto`."""
    runs: dict[str, Run] = {"identity": _ours("identity", {})}
    for name, cls in CALIBRATORS.items():
        for settings in cls.candidates:
            label = ", ".join(f"{k}={v}" for k, v in settings.items())
            runs[f"{name} ({label})" if label else name] = _ours(name, dict(settings))
    for first, second in BENT:
        runs[f"{first}+{second}"] = _ours(f"{first}+{second}", {})
    runs["auto"] = _auto(budget)
    return runs


def _ours(name: str, settings: dict[str, Any]) -> Run:
    def run(calibration: Predictions, test: Predictions) -> tuple[Predictions, float, str]:
        calibrator = resolve(name, settings)
        start = time.process_time()
        fitted = calibrator.fold(calibration)
        return fitted.predictions(test), time.process_time() - start, ""

    return run


def _auto(budget: float) -> Run:
    def run(calibration: Predictions, test: Predictions) -> tuple[Predictions, float, str]:
        start = time.process_time()
        choice = resolve("auto", {"budget": budget}).choose(calibration, None)  # type: ignore[attr-defined]
        fitted = choice.calibrator.fold(calibration)
        chosen = next((str(row["method"]) for row in choice.ranking if row.get("chosen")), choice.calibrator.name)
        return fitted.predictions(test), time.process_time() - start, chosen

    return run


def theirs() -> dict[str, Run]:
    def wrapped(fit: Any) -> Run:
        def run(calibration: Predictions, test: Predictions) -> tuple[Predictions, float, str]:
            assert calibration.logits is not None and test.logits is not None
            before, after = (torch.softmax(p.logits.double(), 1).numpy() for p in (calibration, test))  # type: ignore[union-attr]
            start = time.process_time()
            apply = fit(before, calibration.labels.numpy())
            seconds = time.process_time() - start
            q = apply(after)
            q = np.clip(np.nan_to_num(q, nan=0.0), 0, None)
            q = q / np.maximum(q.sum(1, keepdims=True), 1e-300)
            q[q.sum(1) == 0] = 1 / q.shape[1]
            return calibrant.predictions(probs=torch.from_numpy(q), labels=test.labels), seconds, ""

        return run

    return {name: wrapped(fit) for name, fit in peers().items()}


def sets(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in visible(folder, "*.npz"):
        with np.load(path) as data:
            if "labels" in data and ("logits" in data or "probs" in data):
                yield path.stem, path


def load(path: Path) -> Predictions:
    with np.load(path) as data:
        labels = torch.from_numpy(data["labels"].astype(np.int64))
        if "logits" in data:
            return calibrant.predictions(torch.from_numpy(data["logits"].astype(np.float64)), labels)
        return calibrant.predictions(probs=torch.from_numpy(data["probs"].astype(np.float64)), labels=labels)


def race(
    file: str,
    read: Callable[[], Predictions],
    seed: int,
    runs: dict[str, Run],
    cache: Path,
    limit: int,
    most: int | None = None,
) -> None:
    """Run what the cache does not hold yet; fit on a half, or on `most` items of it."""
    whole: Predictions | None = None
    for name, run in runs.items():
        out = cache / f"{file}__{seed}__{name.replace(' ', '_').replace('/', '-')}.npz"
        if out.exists():
            continue
        whole = read() if whole is None else whole
        order = torch.randperm(whole.n, generator=torch.Generator().manual_seed(seed))
        half = whole.n // 2
        calibration, test = whole.take(order[: min(half, most or half)]), whole.take(order[half:])
        row: dict[str, Any] = {"set": file, "seed": seed, "method": name, "k": whole.k, "n": calibration.n}
        loss = np.empty(0)
        try:
            if any(part in name for part in SMALL_ONLY) and (whole.k or 0) > 50:
                raise TooLong
            with at_most(limit):
                after, row["seconds"], row["chosen"] = run(calibration, test)
            scores = reduce(after)
            report = evaluate_scores(scores, metrics=METRICS)
            row |= {m: report[m].value for m in METRICS}
            loss = loss_of(scores, calibration.n).clamp_max(-np.log(1e-30)).numpy()
            row["nll"] = float(loss.mean())
        except TooLong:
            row["failed"] = "too slow"
        except Exception as error:  # a peer's failure is a result
            row["failed"] = f"{type(error).__name__}: {error}"[:160]
        with atomic.file(out) as whole_or_not:
            np.savez_compressed(whole_or_not, row=json.dumps(row), loss=loss, items=order[half:].numpy())
        print(file, seed, name, row.get("failed") or f"nll {row['nll']:.5f}  {row['seconds']:.2f} s", flush=True)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLong

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("CALIBRANT_DATA", ".")) / "logits")
    parser.add_argument("--cache", type=Path, default=Path("build/race"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=60, help="seconds a fit may take")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds that auto may take")
    parser.add_argument("--only", default="", help="part of a file's name")
    parser.add_argument("--methods", default="", help="comma-separated parts of names")
    parser.add_argument("--skip", default="", help="comma-separated parts of names")
    parser.add_argument("--write", type=Path, default=Path("docs/race.md"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.cache.mkdir(parents=True, exist_ok=True)
    wanted, skipped = ([m for m in text.split(",") if m] for text in (given.methods, given.skip))
    runs = {n: r for n, r in (ours(given.budget) | theirs()).items() if not wanted or any(w in n for w in wanted)}
    runs = {n: r for n, r in runs.items() if not any(s in n for s in skipped)}
    for seed in range(given.seeds):
        for name, path in sets(given.data):
            if given.only in name:
                race(name, partial(load, path), seed, runs, given.cache, given.limit)
    write(given.cache, given.write, budget=given.budget)


if __name__ == "__main__":
    main()
