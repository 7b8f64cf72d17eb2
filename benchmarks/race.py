"""A race on real predictions: all our calibrators, and those of probmetrics and netcal if they are installed.

    python -m benchmarks.race --data FOLDER                # writes docs/race.md
    python -m benchmarks.race --auto --data FOLDER         # `auto` against every single method: docs/race_auto.md
    python -m benchmarks.race --data FOLDER --only cifar10_lenet5 --methods temperature,sms --seeds 1

Each file of FOLDER (CALIBRANT_DATA/logits) with logits (or probs) and labels is split in halves by a seed. All methods
are fitted on one half and judged on the other. Peers get the softmax in float64. NLL counts a probability below 1e-30
as 1e-30. A method that fails or takes more than --limit seconds gets a row that says so. Results are kept in --cache,
one file per run, so a stopped race can be resumed. --auto also uses files of top-1 confidences (`NAME__label,
NAME__pred, NAME__conf`), with the NLL of "the predicted label is right", and fits on at most --items items
(--items-many with 100 classes or more).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calibrant
from benchmarks import race_auto, race_table
from benchmarks.race_peers import SMALL_ONLY, peers
from benchmarks.side_by_side import options
from calibrant.files import atomic
from calibrant.files.paths import visible
from calibrant.functional.scores import reduce
from calibrant.metrics.evaluate import evaluate_scores
from calibrant.posthoc import CALIBRATORS
from calibrant.posthoc.auto import SMOOTH_PAIRS
from calibrant.posthoc.crossval import loss_of
from calibrant.posthoc.fit import resolve
from calibrant.types import Predictions

METRICS = ("nll", "brier", "ece", "auroc", "accuracy")
Run = Callable[[Predictions, Predictions], tuple[Predictions, float, str]]
"""(calibration, test) → (test after the map, seconds to fit, what was chosen)."""


class TooLong(Exception):
    """A method took too long."""


def ours(budget: float) -> dict[str, Run]:
    """Every calibrator of the table with every setting that `auto` tries, its smooth compositions, and `auto`."""
    runs: dict[str, Run] = {"identity": _ours("identity", {})}
    for name, cls in CALIBRATORS.items():
        for settings in cls.candidates:
            label = ", ".join(f"{k}={v}" for k, v in settings.items())
            runs[f"{name} ({label})" if label else name] = _ours(name, dict(settings))
    for first, second in SMOOTH_PAIRS:
        runs[f"{first}+{second}"] = _ours(f"{first}+{second}", {})
    runs["auto"] = _auto(budget)
    return runs


def _ours(name: str, settings: dict[str, Any]) -> Run:
    def run(calibration: Predictions, test: Predictions) -> tuple[Predictions, float, str]:
        calibrator = resolve(name, settings)
        start = time.process_time()
        fitted = calibrator.fit_map(calibration)
        return fitted.predictions(test), time.process_time() - start, ""

    return run


def _auto(budget: float) -> Run:
    def run(calibration: Predictions, test: Predictions) -> tuple[Predictions, float, str]:
        start = time.process_time()
        choice = resolve("auto", {"budget": budget}).choose(calibration, None)  # type: ignore[attr-defined]
        fitted = choice.calibrator.fit_map(calibration)
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
    """Run what is not in the cache yet, fitting on a half or on `most` items of it."""
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


def top1(path: Path, name: str) -> Predictions:
    with np.load(path) as data:
        label, predicted = (torch.from_numpy(data[f"{name}__{key}"].astype(np.int64)) for key in ("label", "pred"))
        confidence = torch.from_numpy(data[f"{name}__conf"].astype(np.float64))
    return calibrant.predictions(labels=label, predicted=predicted, confidence=confidence)


def top1_takes(method: str) -> bool:
    name, _, settings = method.partition(" (")
    fits = name in CALIBRATORS and CALIBRATORS[name].takes_top1 and not settings
    return fits or method in ("identity", "auto")


def of_top1(folder: Path) -> Iterator[tuple[str, Callable[[], Predictions]]]:
    for path in visible(folder, "*.npz"):
        with np.load(path) as data:
            names = sorted({key.removesuffix("__conf") for key in data if key.endswith("__conf")})
        for name in names:
            yield name, partial(top1, path, name)


def main() -> None:
    folder = Path(os.environ.get("CALIBRANT_DATA", ".")) / "logits"
    given = options(
        __doc__, auto=False, data=folder, cache="", seeds=0, limit=0, budget=0.0, only="", methods="", skip="",
        write="", items=5000, items_many=2000,
    )  # fmt: skip
    page = "race_auto" if given.auto else "race"
    seeds, limit = given.seeds or (2 if given.auto else 3), given.limit or (600 if given.auto else 60)
    budget, cache = given.budget or (600.0 if given.auto else 30.0), Path(given.cache or f"build/{page}")
    torch.set_num_threads(1)
    cache.mkdir(parents=True, exist_ok=True)
    wanted, skipped = ([m for m in text.split(",") if m] for text in (given.methods, given.skip))
    every = ours(budget) if given.auto else ours(budget) | theirs()
    runs = {n: r for n, r in every.items() if not wanted or any(w in n for w in wanted)}
    runs = {n: r for n, r in runs.items() if not any(s in n for s in skipped)}
    found = [(name, partial(load, path)) for name, path in sets(given.data)]
    for seed in range(seeds):
        for name, read in [*found, *(of_top1(given.data) if given.auto else ())]:
            if given.only in name:
                k = read().k if given.auto else 0
                usable = {m: r for m, r in runs.items() if k is not None or top1_takes(m)}
                most = (given.items_many if (k or 0) >= 100 else given.items) if given.auto else None
                race(name, read, seed, usable, cache, limit, most)
    out = Path(given.write or f"docs/{page}.md")
    if given.auto:
        race_auto.write(cache, out, budget, given.items, given.items_many, seeds)
    else:
        race_table.write(cache, out, budget)


if __name__ == "__main__":
    main()
