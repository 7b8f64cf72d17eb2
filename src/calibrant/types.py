"""The frozen records that flow through the pipeline: Predictions → Scores → Estimate → Report.

`logits` always means unnormalised log-probabilities, classes last; log-probabilities are logits too.
`raw` remembers whether the logits still carry the network's own scale.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant.display import Rows, Shown
from calibrant.errors import InputError, MissingDependencyError, no_member, unknown

SCHEMA = 1
"""Version of every JSON object that leaves the process."""


class Split(StrEnum):
    """The part of the data that an item belongs to. `unknown` can be used, but reports say so."""

    TRAIN = "train"
    VALIDATION = "validation"
    CALIBRATION = "calibration"
    TEST = "test"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Predictions(Shown):
    """The predictions for N items and their true labels. Build it with `calibrant.predictions`.

    It holds `logits` ([N, K], or [M, N, K] for M members) or, for a top-1 file, `predicted` and `confidence` alone. If
    both are present, metrics use the explicit pair: a top-label calibrator sets a confidence that logits cannot carry.
    """

    labels: Tensor
    logits: Tensor | None = None
    predicted: Tensor | None = None
    confidence: Tensor | None = None
    split: Split = Split.UNKNOWN
    raw: bool = True
    ids: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    features: Tensor | None = None
    group: Tensor | None = None
    group_names: tuple[str, ...] | None = None  # names of the groups; `group` holds indices into them
    binary: bool = False  # K = 2 given as one column: the report says what the number is about
    source: str = ""
    fitted_on: str = ""  # content hash of the data on which a map that was applied to these was fitted
    origin: str = ""  # content hash of these predictions before any map was applied

    def __post_init__(self) -> None:
        if not isinstance(self.labels, Tensor) or self.labels.ndim != 1:
            raise InputError(
                "labels is not one number per item; build this with `calibrant.predictions(logits, labels)`"
            )

    @property
    def n(self) -> int:
        return int(self.labels.shape[0])

    @property
    def k(self) -> int | None:
        """The number of classes; None for a top-1 file, which does not say."""
        return None if self.logits is None else int(self.logits.shape[-1])

    @property
    def members(self) -> int:
        return int(self.logits.shape[0]) if self.logits is not None and self.logits.ndim == 3 else 1

    def __len__(self) -> int:
        return self.n

    def fingerprint(self) -> str:
        """Content hash of scores and labels: two files with the same content are the same data."""
        from calibrant.functional.fingerprint import Fingerprint

        return Fingerprint().add(**self.scores()).hexdigest()

    def scores(self) -> dict[str, Tensor | None]:
        """The tensors that define these data, with items as first axis: labels and what was predicted."""
        logits = self.logits
        if logits is not None and logits.ndim == 3:
            logits = logits.movedim(0, 1)
        return {"labels": self.labels, "logits": logits, "predicted": self.predicted, "confidence": self.confidence}

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a .npz, .safetensors, .parquet or .csv file, whole or not at all. `calibrant.read` reads it."""
        from calibrant.files import write

        return write(path, self)

    def _shown(self) -> tuple[str, Rows]:
        of = "top-1 only" if self.k is None else f"{self.k:,} classes"
        members = f", {self.members} members" if self.members > 1 else ""
        names = () if self.classes is None else self.classes
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        about = {"classes": listed, "split": self.split.value, "source": self.source}
        return f"Predictions of {self.n:,} items, {of}{members}", [pair for pair in about.items() if pair[1]]

    def take(self, index: Tensor) -> Predictions:
        """The items at `index`, with everything that belongs to them."""

        def pick(tensor: Tensor | None) -> Any:
            return None if tensor is None else tensor[index.to(tensor.device)]

        kept = {name: pick(getattr(self, name)) for name in ("labels", "predicted", "confidence", "features", "group")}
        logits = None if self.logits is None else self.logits.index_select(-2, index.to(self.logits.device))
        ids = None if self.ids is None else tuple(self.ids[i] for i in index.tolist())
        return replace(self, logits=logits, ids=ids, **kept)


@dataclass(frozen=True)
class Estimate:
    """A number with its interval. It is formatted and compared as the number, which is None if it does not exist."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    method: str | None = None  # how the interval was made

    def to_dict(self) -> dict[str, Any]:
        beside = {name: said for name in ("reason", "method") if (said := getattr(self, name)) is not None}
        return {"value": self.value, "low": self.low, "high": self.high, **beside}

    def __float__(self) -> float:
        if self.value is None:
            raise InputError(f"this estimate has no value: {self.reason}")
        return self.value

    def __round__(self, digits: int | None = None) -> float:
        return round(float(self), digits)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __lt__(self, other: Any) -> bool:
        return float(self) < float(other) if isinstance(other, Estimate | Real) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return float(self) <= float(other) if isinstance(other, Estimate | Real) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return float(self) > float(other) if isinstance(other, Estimate | Real) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return float(self) >= float(other) if isinstance(other, Estimate | Real) else NotImplemented

    def __repr__(self) -> str:
        if self.value is None:
            return f"– ({self.reason})"
        known = self.low is not None and self.high is not None
        return f"{self.value:.4f}" + (f" [{self.low:.4f}, {self.high:.4f}]" if known else "")


@dataclass(frozen=True)
class Report(Shown, Mapping[str, Estimate]):
    """Named estimates over one set of predictions, with the conventions that give them meaning.

    Read one as `report["ece"].value` or `report.ece.value`; iterating gives the metric names. `extras` holds by name
    what is not one number: decompositions, the ECE identity, ensemble numbers, the calibration test.
    """

    metrics: Mapping[str, Estimate]
    n: int
    k: int | None
    conventions: Mapping[str, Any]
    file: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    percent: frozenset[str] = frozenset()  # metrics that printed tables show in percent
    predictions: Predictions | None = field(default=None, compare=False)  # for `to_html`; a stream keeps none
    by: Any = None  # `metrics.subgroups.Subgroups`, if `evaluate` was called with `by`

    def __getitem__(self, name: str) -> Estimate:
        if name not in self.metrics:
            raise unknown("metric", str(name), self.metrics)
        return self.metrics[name]

    def __getattr__(self, name: str) -> Estimate:
        metrics: Mapping[str, Estimate] = self.__dict__.get("metrics", {})  # no fields yet while it is copied
        if name in metrics:
            return metrics[name]
        raise no_member("Report", name, [*metrics, *vars(Report)])

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self.metrics])

    @property
    def verdict(self) -> str:
        """The finding in one sentence: "overconfident: says 97%, is right 91%"."""
        from calibrant.report.verdict import verdict

        return verdict(self)

    def _shown(self) -> tuple[str, Rows]:
        from calibrant.report.verdict import shown

        return shown(self)

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write the report for a browser: one file that opens offline."""
        from calibrant.report.html import of_report

        return of_report(path, self)

    def to_pandas(self) -> Any:
        """A DataFrame with one row per metric: value, low, high, reason, method."""
        return data_frame([{"metric": name, **vars(e)} for name, e in self.metrics.items()])

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "file": self.file,
            "n": self.n,
            "k": self.k,
            "conventions": dict(self.conventions),
            "metrics": {name: estimate.to_dict() for name, estimate in self.metrics.items()},
            **({"extras": dict(self.extras)} if self.extras else {}),
            **({"by": self.by.to_dict()} if self.by is not None else {}),
        }

    def to_json(self, indent: int | None = 2) -> str:
        return json_text(self.to_dict(), indent)

    def to_markdown(self) -> str:
        """A table with one row per metric: value and 95% interval."""
        rows = ["| metric | value | 95% interval |", "|---|---:|---|"]
        for name, e in self.metrics.items():
            scale, unit = (100.0, "%") if name in self.percent else (1.0, "")
            value = "–" if e.value is None else f"{e.value * scale:.4g}{unit}"
            interval = e.reason or ("" if e.value is None else "–")
            if e.value is not None and e.low is not None and e.high is not None:
                interval = f"[{e.low * scale:.4g}, {e.high * scale:.4g}]"
            rows.append(f"| {name} | {value} | {interval} |")
        return "\n".join(rows)


def data_frame(rows: list[dict[str, Any]]) -> Any:
    """A pandas DataFrame of records that all have a `metric`, which becomes the index."""
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError("to_pandas needs pandas: pip install pandas") from error
    return pandas.DataFrame.from_records(rows, index="metric")


def json_text(value: Any, indent: int | None = 2) -> str:
    """Records, tensors and numbers as JSON."""
    return json.dumps(jsonable(value), indent=indent, ensure_ascii=False, allow_nan=False)


def jsonable(value: Any) -> Any:
    """Plain JSON types from records, tensors and numbers; numbers that are not finite become null."""
    if isinstance(value, Estimate):
        return jsonable(value.to_dict())
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    if isinstance(value, Tensor):
        return jsonable(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        return jsonable(value.item())
    return value
