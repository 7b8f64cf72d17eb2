"""The time that `calibrant bench` and its store add to the steps themselves.

    python -m benchmarks.bench_overhead [--seeds 3]

The steps train a network on digits for a few seconds and measure it, in this process. The steps' own time is that of
`train` and of measuring. All the rest, from planning the graph to writing cells and logits, is overhead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.side_by_side import options, timed
from calibrant.bench import measure, steps, train
from calibrant.bench.place import Place
from calibrant.bench.run import run
from calibrant.bench.store import Store
from calibrant.executors import InProcess
from calibrant.papers import Experiment
from calibrant.training import How
from calibrant.training import read as recipe

DIGITS = Experiment("bench", "overhead", "digits", recipe("digits/cross_entropy"), calibrators=("temperature",))


@contextmanager
def counted(owner: Any, name: str, spent: dict[str, float]) -> Iterator[None]:
    """Add the seconds of every call of `owner.name` to `spent[name]`."""
    plain: Callable[..., Any] = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return plain(*given, **named)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - start

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def overhead(seeds: int) -> tuple[float, dict[str, float]]:
    """(seconds of a run that measures one cell per seed, seconds of its parts)."""
    spent: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        place = Place(Path(folder, "results"), Path(folder, "runs"), How(device="cpu", quiet=True))
        run([replace(DIGITS, row="warm")], [seeds], 1, place, InProcess())  # loads late imports and the data
        with (
            counted(train, "train", spent),
            counted(steps, "measured", spent),
            counted(measure, "keep_logits", spent),
            counted(Store, "write", spent),
        ):
            made, whole = timed(
                lambda: run([DIGITS], range(seeds), "paper", place, InProcess()), clock=time.perf_counter
            )
    assert len(made.cells) == seeds and not made.open
    return whole, spent


def main() -> None:
    asked = options(__doc__, seeds=3)
    whole, spent = overhead(asked.seeds)
    own = spent["train"] + spent["measured"] - spent["keep_logits"]
    print(f"{asked.seeds} cells of digits: {whole:.2f} s, of which trainings and measuring {own:.2f} s")
    print(f"added: {1000 * (whole - own) / asked.seeds:.0f} ms a cell, {(whole - own) / own:.2%} (target: below 1%)")
    print(f"of this: writing cells {1000 * spent['write'] / asked.seeds:.0f} ms, logits "
          f"{1000 * spent['keep_logits'] / asked.seeds:.0f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
