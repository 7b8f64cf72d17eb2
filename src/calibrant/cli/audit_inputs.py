"""The inputs of `audit`: reads and judges each file, in memory or as a stream."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant import files
from calibrant.cli.options import Bins, BootstrapSeed, Intervals, Metrics, metric_names
from calibrant.cli.reading import Reading
from calibrant.errors import CalibrantWarning, InputError
from calibrant.files import parquet
from calibrant.functional.probabilities import FLOOR
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.evaluate import checked_count, evaluate, plan
from calibrant.metrics.subgroups import Subgroups, subgroups
from calibrant.types import Predictions, Report

if TYPE_CHECKING:
    from calibrant.decisions.judge import Judgement
    from calibrant.executors.cluster import RayCluster
    from calibrant.functional.binning import BinSums

ROWS_IN_MEMORY = 1_000_000
NUMBERS_IN_MEMORY = 1 << 27
"""Parquet with more rows, or more numbers, than this is streamed."""
FEWEST = 100
"""Fewest items that can be split into a half to fit a map on and a half to judge it on."""


@dataclass(frozen=True)
class Options:
    """How `audit` reads and judges."""

    intervals: Intervals = True
    metrics: Metrics = None
    bins: Bins = 15
    seed: BootstrapSeed = 0
    about: Annotated[
        str, typer.Option(help="two classes: judge confidence in the 'top' label or in the 'positive' class, number 1")
    ] = "top"
    by: Annotated[
        str | None, typer.Option(help="a column of the file, e.g. hospital: the same numbers for each of its groups")
    ] = None
    width: Annotated[
        float | None, typer.Option("--plan", help="how many items intervals of this width would need, e.g. 0.02")
    ] = None
    rule: Annotated[Path | None, typer.Option(help="also judge this rule of `calibrant decide` on these items")] = None
    reading: Reading = field(default_factory=Reading)
    allow_reuse: Annotated[bool, typer.Option(help="allow items that the map was fitted on")] = False
    stream: Annotated[
        bool, typer.Option(help="read Parquet in one pass at fixed memory; large files are streamed anyway")
    ] = False
    workers: Annotated[int, typer.Option(help="number of threads that read a stream")] = 1
    ray: Annotated[str | None, typer.Option(help="a Ray cluster that reads a stream: its address, or local")] = None
    exact: Annotated[bool, typer.Option(help="rank a stream exactly, by sorting on disk")] = False

    def __post_init__(self) -> None:
        metric_names(self.metrics)
        if self.width is not None and not self.intervals:
            raise InputError("--plan needs intervals; leave out --no-intervals")
        if self.workers < 1:
            raise InputError(f"--workers {self.workers} must be 1 or more")
        if self.ray is not None and self.workers > 1:
            raise InputError("--ray and --workers both choose who reads a stream; use one of them")
        checked_count("bins", self.bins, 1)  # `evaluate` checks this too, but does not see a stream
        if self.about not in ("top", "positive"):
            raise InputError(f"--about {self.about!r} is unknown; use top or positive")

    @property
    def names(self) -> list[str] | None:
        """The metrics that were asked for; None for the default ones."""
        return metric_names(self.metrics)

    @property
    def judging(self) -> dict[str, Any]:
        """The settings of `evaluate`."""
        return {
            "bins": self.bins,
            "metrics": self.names,
            "intervals": self.intervals,
            "seed": self.seed,
            "about": self.about,
            "allow_reuse": self.allow_reuse,
        }


@dataclass(frozen=True)
class Audited:
    """One input and its results. A stream has no predictions, only the sums of its bins."""

    report: Report
    predictions: Predictions | None = None
    sums: BinSums | None = None
    warnings: tuple[str, ...] = ()  # that the library gave while reading the file
    by: Subgroups | None = None
    rule: Judgement | None = None
    plan: dict[str, Any] | None = None  # the width that is asked for, and the items that it needs
    reading: Reading = field(default_factory=Reading)

    @property
    def notes(self) -> tuple[str, ...]:
        """What looks wrong in the file, one sentence each; nothing is changed."""
        never = self.report.extras.get("impossible_labels")
        if never is None:
            return self.warnings
        n, share = int(never["items"]), never["nll"]
        items = "1 item gives its label" if n == 1 else f"{n:,} items give their label"
        return (
            *self.warnings,
            f"{items} a probability of {FLOOR:g} or less (0 counts as {FLOOR:g}), which adds {share:.4f} to the NLL",
        )

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            n: each.to_dict() for n, each in (("by", self.by), ("rule", self.rule)) if each is not None
        }
        found |= {"notes": list(self.notes)} if self.notes else {}
        found |= {"plan": self.plan} if self.plan is not None else {}
        return self.report.to_dict() | found


def audited(path: Path, reading: Reading, o: Options) -> Audited:
    """Read and judge one input, with `--by`, `--plan` and `--rule` where they are asked for."""
    found = _streamed(path, reading, o) if streams(path, reading, o) else _read(path, reading, o)
    if o.by is not None:
        found = replace(found, by=_grouped(found, path, o.by, o))
    if o.width is not None:
        found = replace(found, plan={"width": o.width, "items": plan(found.report, o.width)})
    return found if o.rule is None else replace(found, rule=_ruled(found, o.rule, o))


def _read(path: Path, reading: Reading, o: Options) -> Audited:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", CalibrantWarning)
        p = reading.read(path)
    return Audited(evaluate(p, **o.judging), p, warnings=tuple(str(each.message) for each in given), reading=reading)


def streams(path: Path, reading: Reading, o: Options) -> bool:
    """Whether this input is streamed: on request, or because it is large Parquet."""
    table = files.existing(path).is_dir() or path.suffix == ".parquet"
    asked = o.stream or o.ray is not None
    if not table or reading.labels is not None or reading.class_axis != -1:
        if asked:
            raise InputError(
                f"{path}: only Parquet (a file or a folder of parts, with its labels inside) can be streamed"
            )
        return False
    if asked:
        return True
    found = parquet.parts(path)
    rows = sum(sum(parquet.group_rows(part)) for part in found)
    return rows > ROWS_IN_MEMORY or rows * parquet.width(found[0]) > NUMBERS_IN_MEMORY


def _grouped(each: Audited, path: Path, column: str, o: Options) -> Subgroups:
    """The metrics in each group of a column of the file."""
    if each.predictions is None:
        raise InputError(
            f"{path}: --by needs the items in memory, and this was streamed; audit fewer rows, or leave out --stream"
        )
    with warnings.catch_warnings():  # the first reading gave them already
        warnings.simplefilter("ignore", CalibrantWarning)
        found = each.reading.read(path, group_key=column)
    assert found.group is not None and found.group_names is not None
    return subgroups(each.predictions, found.group, found.group_names, column, **o.judging)


def _ruled(each: Audited, folder: Path, o: Options) -> Judgement:
    """How a rule does on the audited items."""
    from calibrant.decisions.judge import judge
    from calibrant.decisions.storage import load_rule

    if each.predictions is None:
        raise InputError(f"{each.report.file}: a rule is judged on items in memory, and this was streamed")
    return judge(load_rule(folder), each.predictions, allow_reuse=o.allow_reuse)


def _streamed(path: Path, reading: Reading, o: Options) -> Audited:
    from calibrant.cli.layout import Bar
    from calibrant.metrics import external_sort, stream_parquet, stream_report
    from calibrant.metrics.stream import StreamPanel

    with ExitStack() as stack:
        spill = stack.enter_context(tempfile.TemporaryDirectory(prefix="calibrant-")) if o.exact else None
        settings = stream_parquet.Settings(
            reading.keys, o.bins, o.about == "positive", reading.ignore_index, o.allow_reuse, spill
        )
        bar = stack.enter_context(Bar(str(path)))
        found = stream_parquet.stream(
            path,
            settings,
            workers=o.workers,
            cluster=_cluster(o),
            progress=bar.rows,
        )
        exact = external_sort.exact(Path(spill), found.state) if spill is not None else None
    report = stream_report.report(
        found.state,
        metrics=o.names,
        resampling=Resampling(o.seed) if o.intervals else None,
        split=found.split,
        file=str(path),
        binary=found.binary,
        exact=exact,
    )
    return Audited(report, None, StreamPanel(found.state).width, reading=reading)


def _cluster(o: Options) -> RayCluster | None:
    """The cluster that reads a stream; None if threads of this process do."""
    if o.ray is None:
        return None
    from calibrant.executors.cluster import LOCAL, RayCluster

    if o.exact and o.ray != LOCAL:
        raise InputError("--exact sorts on this machine's disk, which a cluster does not share; use --workers")
    return RayCluster(o.ray)
