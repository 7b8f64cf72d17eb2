"""Every job that can be raced on a CPU without data, against every peer that is installed: one table.

    python -m benchmarks.speed                 # prints the table; writes benchmarks/speed.json and docs/speed.md
    python -m benchmarks.speed --small         # a tenth of the items: minutes, and no verdict on the limits
    python -m benchmarks.speed --only stream   # jobs whose name contains this; writes nothing
    python -m benchmarks.speed --page          # docs/speed.md from speed.json and device.json (`benchmarks.device`)

Both sides of a row run in turns in one process on one thread; seconds are medians of processor time (of wall time where
processes work side by side). A peer that is not installed is left out; `make bench` installs them.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import calibrant
from benchmarks import device, metrics, streaming, temperature
from benchmarks.side_by_side import Call, in_turns, machine, options, ratio, timed
from calibrant.functional.scores import reduce
from calibrant.metrics import stream_parquet
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.evaluate import evaluate_scores

ROOT = Path(__file__).parents[1]
JSON, DEVICE, PAGE = ROOT / "benchmarks" / "speed.json", ROOT / "benchmarks" / "device.json", ROOT / "docs" / "speed.md"
LIMITS = {
    "torch-uncertainty": (2.5, 1.5),
    "probmetrics": (2.5, 1.5),
    "torchmetrics (ECE alone)": (1.0, 1.0),
    "netcal (ECE alone)": (1.0, 1.0),
    "uncertainty-calibration (ECE alone)": (1.0, 1.0),
}
"""Peer → how many times our time it must take at least: many classes, many items."""
PACKAGES = ("calibrant", "torch", "numpy", "torch-uncertainty", "probmetrics", "torchmetrics", "netcal")
PACKAGES += ("uncertainty-calibration",)


@dataclass(frozen=True)
class Row:
    """Seconds of ours and of the peer; `ratio` is what `limit` speaks of, in words where it is not theirs / ours."""

    job: str
    ours: float
    peer: str
    theirs: float | None
    ratio: float | None
    limit: str

    @property
    def met(self) -> bool | None:
        if not self.limit:
            return None
        sign, number = self.limit.split()[:2]
        value = self.ours if self.ratio is None else self.ratio
        return value <= float(number) if sign == "≤" else value >= float(number)


def race(ours: Call, theirs: Call, rounds: int, clock: Callable[[], float] = time.process_time) -> tuple[float, ...]:
    """(our seconds, theirs, theirs / ours), medians of rounds in turns after one that warms up."""

    def quiet(call: Call) -> Call:
        def silent() -> None:
            with contextlib.redirect_stdout(io.StringIO()):
                call()

        return silent

    a, b = in_turns([quiet(ours), quiet(theirs)], rounds, clock=clock)
    return statistics.median(a), statistics.median(b), ratio(b, a)


def panels(small: bool, rounds: int) -> Iterator[Row]:
    """The panel without intervals against a bare log_softmax, and each peer against the same metrics of ours."""
    cases = []
    for make in metrics.PEERS:
        with contextlib.suppress(ImportError):
            cases.append(make())
    for i, (n, k) in enumerate(metrics.SIZES):
        z, y = metrics.data(n // 10 if small else n, k)
        job = f"panel, {len(z):,} × {k:,}"
        a, b, _ = race(lambda: metrics.ours(None)(z, y), lambda: torch.log_softmax(z, -1), rounds)  # noqa: B023
        yield Row(job, a, "log_softmax", b, a / b, f"≤ {(2, 8)[i]} (ours / theirs)")
        for case in cases:
            try:
                a, b, times = race(lambda: metrics.ours(case.shared)(z, y), lambda: case.call(z, y), rounds)  # noqa: B023
            except Exception as error:  # a peer that fails gets a row, and the others still run
                yield Row(job, a, f"{case.name}: {type(error).__name__}", None, None, "")
                continue
            name = next(known for known in LIMITS if case.name.startswith(known.split(" (")[0]))
            yield Row(f"{job}, the numbers of the peer", a, case.name, b, times, f"≥ {LIMITS[name][i]:g}")


def intervals(small: bool, rounds: int) -> Iterator[Row]:
    """The whole panel with 1,000 replicates and the test of calibration."""
    z, y = metrics.data(100_000 if small else 1_000_000, 10)
    _, took = timed(lambda: evaluate_scores(reduce(calibrant.predictions(z, y)), resampling=Resampling()))
    yield Row(f"panel with intervals, {len(z):,} × 10", took, "–", None, None, "≤ 3 s")


def temperatures(small: bool, rounds: int) -> Iterator[Row]:
    """T* of all peers, and our whole fit with its guard and hash."""
    for n, k in temperature.SIZES:
        z, y = temperature.sample(n // 10 if small else n, k)
        ours, *peers = temperature.fits().items()
        for name, fit in peers:
            if name.startswith("calibrant"):
                continue
            a, b, times = race(lambda: ours[1](z, y), lambda: fit(z, y), rounds)  # noqa: B023
            yield Row(f"T*, {len(z):,} × {k:,}", a, name, b, times, "≥ 1")
    z, y = metrics.data(5_000 if small else 50_000, 1_000)
    _, took = timed(lambda: calibrant.fit("temperature", z, y))
    yield Row(f"fit('temperature'), {len(z):,} × 1,000", took, "–", None, None, "≤ 1.2 s")


def streams(small: bool, rounds: int) -> Iterator[Row]:
    """Parquet, read and reduced by one thread and by two, against reducing the same logits in memory."""
    rows, k = (400_000, 10) if small else (4_000_000, 10)
    with tempfile.TemporaryDirectory() as folder:
        streaming.make(Path(folder), rows, k, rows // 4)
        whole = calibrant.read(folder)

        def streamed(workers: int) -> object:
            return stream_parquet.stream(Path(folder), stream_parquet.Settings(), workers=workers)

        job = f"stream of Parquet, {rows:,} × {k}"
        a, b, times = race(lambda: streamed(1), lambda: reduce(whole), rounds)
        yield Row(f"{job}, one worker", a, "reduction in memory, one thread", b, times, "≥ 0.7")
        torch.set_num_threads(2)
        a, b, times = race(lambda: streamed(2), lambda: reduce(whole), rounds, time.perf_counter)
        torch.set_num_threads(1)
        yield Row(f"{job}, two workers", a, "reduction in memory, two threads", b, times, "≥ 0.7")


JOBS: dict[str, Callable[[bool, int], Iterator[Row]]] = {
    "panel": panels,
    "intervals": intervals,
    "temperature": temperatures,
    "stream": streams,
}


HEAD = ("| job | ours, s | peer | peer, s | ratio | limit | |", "|---|---:|---|---:|---:|---|---|")


def line(row: Row, judged: bool) -> str:
    theirs = "–" if row.theirs is None else f"{row.theirs:.3f}"
    ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
    verdict = {True: "met", False: "**missed**", None: ""}[row.met if judged else None]
    return f"| {row.job} | {row.ours:.3f} | {row.peer} | {theirs} | {ratio} | {row.limit or '–'} | {verdict} |"


def busy(record: dict[str, Any]) -> bool:
    return bool(record["load"] > record["cores"] / 2)


def judged(record: dict[str, Any]) -> bool:
    """Whether the limits apply: they are for the full sizes, on cores that do nothing else."""
    return not (record["small"] or busy(record))


def page() -> str:
    """docs/speed.md, from the two JSON files."""
    record = json.loads(JSON.read_text())
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    absent = [name for name in PACKAGES if name not in record["versions"]]
    small = " --small" if record["small"] else ""
    lines = [
        "# Speed",
        "",
        f"    python -m benchmarks.speed{small} --rounds {record['rounds']}",
        "",
        "The two sides of a row take turns in one process with one thread. Seconds are medians of processor time (wall",
        "time for two workers, which run in parallel). The ratio is peer / ours unless the limit says otherwise.",
        "",
        f"{record['date']}, {record['machine']}, load {record['load']:g}"
        + (
            " (the cores were busy with other work: seconds are longer than on idle cores, and limits are not judged)"
            if busy(record)
            else ""
        )
        + f". {versions}."
        + (f" Not installed, and so not timed: {', '.join(absent)}." if absent else ""),
        "",
        *(["With a tenth of the items; limits are for the full sizes, and are not judged.", ""] if small else []),
        *HEAD,
        *(line(Row(**row), judged(record)) for row in record["rows"]),
        "",
        device.section(json.loads(DEVICE.read_text())),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    a = options(__doc__, small=False, rounds=5, only="", page=False)
    if a.page:
        PAGE.write_text(page())
        return
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {
        **machine(PACKAGES),
        "cores": os.cpu_count(),
        "small": a.small,
        "rounds": a.rounds,
        "rows": [],
    }
    print("\n".join(HEAD))
    for name, job in JOBS.items():
        if a.only in name:
            for row in job(a.small, a.rounds):
                record["rows"].append(asdict(row))
                print(line(row, judged(record)), flush=True)
    if not a.only:
        JSON.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
