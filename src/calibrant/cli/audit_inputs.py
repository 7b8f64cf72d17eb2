"""The inputs of `audit`: which file has which labels, what is held in memory and what is streamed."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from calibrant import files
from calibrant.cli.options import reading
from calibrant.errors import CalibrantWarning, FileError, InputError, escaped
from calibrant.files import parquet
from calibrant.files.arrays import Keys
from calibrant.functional.probabilities import FLOOR
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.evaluate import evaluate
from calibrant.types import Predictions, Report

if TYPE_CHECKING:
    from calibrant.decisions.judge import Judgement
    from calibrant.executors import Pool
    from calibrant.functional.binning import BinSums
    from calibrant.metrics.subgroups import Subgroups

ROWS_IN_MEMORY = 1_000_000
NUMBERS_IN_MEMORY = 1 << 27
"""Parquet with more rows, or more numbers, than this is streamed."""
WINDOW = 64
"""States from a cluster that may wait for one before them."""


@dataclass(frozen=True)
class Options:
    """What `audit` was asked for, checked."""

    keys: Keys
    metrics: list[str] | None
    bins: int
    seed: int
    intervals: bool
    about: Literal["top", "positive"]
    class_axis: int
    ignore_index: int | None
    allow_reuse: bool
    workers: int
    ray: str | None
    exact: bool
    stream: bool

    @property
    def words(self) -> str:
        """How a file like these is read, as options of the command line."""
        return reading(self.keys, self.class_axis, self.ignore_index)


@dataclass(frozen=True)
class Audited:
    """One input and what was found. A streamed one has no predictions, only the sums of its bins."""

    report: Report
    predictions: Predictions | None = None
    sums: BinSums | None = None
    warnings: tuple[str, ...] = ()  # what reading it made the library say
    by: Subgroups | None = None
    rule: Judgement | None = None
    plan: dict[str, Any] | None = None  # the width that is wanted, and the items that it takes
    labels: Path | None = None  # a file of them beside this one

    @property
    def notes(self) -> tuple[str, ...]:
        """What looks wrong in the file, one sentence each. It stands beside the numbers; nothing is changed."""
        never = self.report.extras.get("impossible_labels")
        if never is None:
            return self.warnings
        n, share = int(never["items"]), never["nll"]
        what = "1 item gives its label" if n == 1 else f"{n:,} items give their label"
        return (
            *self.warnings,
            f"{what} a probability of {FLOOR:g} or less (0 counts as {FLOOR:g}), which adds {share:.4f} to the NLL",
        )

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            n: each.to_dict() for n, each in (("by", self.by), ("rule", self.rule)) if each is not None
        }
        found |= {"notes": list(self.notes)} if self.notes else {}
        found |= {"plan": self.plan} if self.plan is not None else {}
        return self.report.to_dict() | found


def pairs(preds: Sequence[Path], labels: Path | None) -> list[tuple[Path, Path | None]]:
    """Each file with its labels: a `.npy` takes the next `.npy` as its labels unless `--labels` names them."""
    if labels is not None:
        return [(path, labels) for path in preds]
    found: list[tuple[Path, Path | None]] = []
    waiting: Path | None = None
    for path in preds:
        if path.suffix != ".npy":
            found.append((path, None))
        elif waiting is None:
            waiting = path
        else:
            found.append((waiting, path))
            waiting = None
    if waiting is not None:
        files.existing(waiting)
        raise FileError(f"{waiting}: a .npy of scores needs a .npy of labels after it, or --labels FILE.npy")
    return found


def read(path: Path, labels: Path | None, o: Options, group_key: str | None = None) -> Predictions:
    """One input, by the names that were given."""
    return files.read(
        path,
        labels=labels,
        logits_key=o.keys.logits,
        probs_key=o.keys.probs,
        labels_key=o.keys.labels,
        predicted_key=o.keys.predicted,
        confidence_key=o.keys.confidence,
        group_key=group_key,
        class_axis=o.class_axis,
        ignore_index=o.ignore_index,
    )


def audited(path: Path, labels: Path | None, o: Options) -> Audited:
    """Read and judge one input."""
    if streams(path, labels, o):
        return _streamed(path, o)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", CalibrantWarning)
        p = read(path, labels, o)
    report = evaluate(
        p,
        bins=o.bins,
        metrics=o.metrics,
        intervals=o.intervals,
        seed=o.seed,
        about=o.about,
        allow_reuse=o.allow_reuse,
    )
    return Audited(report, p, warnings=tuple(str(each.message) for each in said))


def streams(path: Path, labels: Path | None, o: Options) -> bool:
    """Whether this input is audited without being held: on request, or because it is large Parquet."""
    table = files.existing(path).is_dir() or path.suffix == ".parquet"
    if not table or labels is not None or o.class_axis != -1:
        if o.stream:
            raise InputError(
                f"{path}: only Parquet (a file or a folder of parts, with its labels inside) can be streamed"
            )
        return False
    if o.stream:
        return True
    found = parquet.parts(path)
    rows = sum(sum(parquet.group_rows(part)) for part in found)
    return rows > ROWS_IN_MEMORY or rows * parquet.width(found[0]) > NUMBERS_IN_MEMORY


def _streamed(path: Path, o: Options) -> Audited:
    from calibrant.metrics import external_sort, stream_parquet, stream_report
    from calibrant.metrics.stream import StreamPanel

    with ExitStack() as stack:
        spill = stack.enter_context(tempfile.TemporaryDirectory(prefix="calibrant-")) if o.exact else None
        settings = stream_parquet.Settings(o.keys, o.bins, o.about == "positive", o.ignore_index, o.allow_reuse, spill)
        found = stream_parquet.stream(
            path,
            settings,
            pool=_pool(o),
            window=WINDOW if o.ray is not None else 2 * o.workers,
            progress=stack.enter_context(_progress(str(path))),
        )
        exact = external_sort.exact(Path(spill), found.state) if spill is not None else None
    report = stream_report.report(
        found.state,
        metrics=o.metrics,
        resampling=Resampling(o.seed) if o.intervals else None,
        split=found.split,
        file=str(path),
        binary=found.binary,
        exact=exact,
    )
    return Audited(report, None, StreamPanel(found.state).width)


def _pool(o: Options) -> Pool | None:
    """Who reads the parts of a stream: this process, several of them, or a cluster."""
    if o.ray is None:
        if o.workers == 1:
            return None
        from calibrant.executors import LocalProcesses

        return LocalProcesses(o.workers, threads=1)
    from calibrant.executors.cluster import LOCAL, RayCluster

    if o.exact and o.ray != LOCAL:
        raise InputError("--exact sorts on this machine's disk, which a cluster does not share; use --workers")
    return RayCluster(o.ray)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over rows on stderr, for people only."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from calibrant.cli.layout import Console

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escaped(name), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
