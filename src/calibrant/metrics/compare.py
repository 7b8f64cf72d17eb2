"""`compare`: is one predictor better than another on the same items, metric by metric, or is it noise?

The difference of a smooth metric has a paired bootstrap interval; for calibration errors a test is inverted (`paired`).
Holm's correction covers the metrics that were asked for. Resampling items compares two *predictors*; to compare two
methods takes several seeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any

from calibrant.display import Rows, Shown, headline
from calibrant.errors import InputError, no_member, unknown
from calibrant.files.data_frame import given
from calibrant.functional.scores import reduce
from calibrant.metrics import METRICS, paired
from calibrant.metrics.bootstrap import bootstrap, resampled_units
from calibrant.metrics.calibration import ece_classwise, estimated
from calibrant.metrics.conventions import BINS, REPLICATES, Resampling, conventions
from calibrant.metrics.evaluate import checked_count, chosen_metrics, point_estimates
from calibrant.metrics.intervals import rare_outcomes, too_few
from calibrant.metrics.paired_noise import PairedNoise, second_goes_first
from calibrant.metrics.panel import Metric, Panel
from calibrant.types import SCHEMA, Predictions, data_frame, jsonable

CAUTION = "These intervals compare two predictors. To compare two methods, train each with several seeds."

_MOVES = {("low", True): "worse", ("low", False): "better", ("high", True): "better", ("high", False): "worse"}


@dataclass(frozen=True)
class Difference:
    """One metric of b against a. `difference` is b − a; for a signed gap, |b| − |a|."""

    metric: str
    a: float | None
    b: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: str | None = None  # b is better, worse, or within noise
    reason: str | None = None
    method: str | None = None

    def __repr__(self) -> str:
        return " ".join((f"{self.metric}:", *self.cells()))

    def cells(self) -> tuple[str, str, str]:
        """Difference, interval and verdict as text."""
        if self.difference is None or self.low is None or self.high is None:
            return "–", "–", self.reason or "–"
        return f"{self.difference:+.4g}", f"[{self.low:+.4g}, {self.high:+.4g}]", self.verdict or "–"


@dataclass(frozen=True)
class Comparison(Shown):
    """The difference of predictor `b` from predictor `a` in each metric: `comparison["ece"].verdict`."""

    a: str
    b: str
    n: int
    rows: tuple[Difference, ...]
    conventions: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Difference:
        for row in self.rows:
            if row.metric == name:
                return row
        raise unknown("metric", str(name), list(self))

    def __getattr__(self, name: str) -> Difference:
        rows: tuple[Difference, ...] = self.__dict__.get("rows", ())  # empty while it is being copied
        found = next((row for row in rows if row.metric == name), None)
        if found is None:
            raise no_member("Comparison", name, [*(row.metric for row in rows), *vars(Comparison)])
        return found

    def __iter__(self) -> Iterator[str]:
        return (row.metric for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def verdict(self) -> str:
        """The finding in one sentence: "better in nll, ece; within noise in auroc"."""
        said: dict[str, list[str]] = {"better": [], "worse": [], "within noise": []}
        for name in headline(self):
            said.setdefault(self[name].verdict or "not comparable", []).append(name)
        return "; ".join(f"{word} in {', '.join(names)}" for word, names in said.items() if names)

    def _shown(self) -> tuple[str, Rows]:
        title = f"{self.b} against {self.a}, {self.n:,} items: {self.verdict}"
        from calibrant.report.comparison import rows

        shown = headline(self)
        return title, [(r.metric, r.difference, r.interval, r.verdict) for r in rows(self) if r.metric in shown]

    def to_pandas(self) -> Any:
        """A DataFrame with one row per metric: a, b, difference, low, high, p, p_holm, verdict, …"""
        return data_frame([asdict(row) for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        rows = [asdict(row) for row in self.rows]
        return {
            "schema": SCHEMA,
            "a": self.a,
            "b": self.b,
            "n": self.n,
            "conventions": dict(self.conventions),
            "caution": CAUTION,
            "metrics": {row.pop("metric"): row for row in rows},
        }

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(jsonable(self.to_dict()), indent=indent, ensure_ascii=False, allow_nan=False)

    def to_markdown(self) -> str:
        title = f"{self.b} against {self.a}, {self.n:,} items"
        lines = [title, "", "| metric | difference | 95% interval | p (Holm) | verdict |", "|---|---:|---|---:|---|"]
        for r in self.rows:
            difference, interval, verdict = r.cells()
            p = "–" if r.p_holm is None else f"{r.p_holm:.3g}"
            lines.append(f"| {r.metric} | {difference} | {interval} | {p} | {verdict} |")
        return "\n".join([*lines, "", CAUTION])


def compare(
    a: Any,
    b: Any,
    labels: Any = None,
    *,
    probs: bool = False,
    metrics: Sequence[str] | None = None,
    bins: int = BINS,
    seed: int = 0,
    replicates: int = REPLICATES,
    group: Any = None,
    names: tuple[str, str] | None = None,
    classes: Sequence[Any] | None = None,
    labels_key: str | None = None,
) -> Comparison:
    """Compare predictor b with predictor a on the same items.

    `a` and `b` are logits with `labels` (probabilities with `probs=True`), `Predictions`, or data frames whose column
    `labels_key` holds the labels. Text labels need `classes`, the class names in the order of the scores.
    """
    about: dict[str, Any] = {"classes": classes, "labels_key": labels_key, "group": group}
    both = tuple(_predictions(x, labels, probs, about) for x in (a, b))
    called = names or tuple(p.source or name for p, name in zip(both, "ab", strict=True))
    same_items(both[0], both[1], (called[0], called[1]))
    resampling = Resampling(seed, checked_count("replicates", replicates, 20))
    grouped = both[0].group if both[0].group is not None else both[1].group
    both = tuple(replace(p, group=grouped) for p in both)
    panels = tuple(Panel(reduce(p, checked_count("bins", bins, 1))) for p in both)
    rows = differences((both[0], both[1]), (panels[0], panels[1]), chosen_metrics(metrics), resampling)
    unit = resampled_units(panels[0].scores)[0]
    said = conventions(bins=bins, interval=resampling.describe(unit)) | {"correction": "Holm over the metrics listed"}
    return Comparison(called[0], called[1], both[0].n, rows, said)


def compare_all(sets: Sequence[Predictions], *, pairs: bool = False, **settings: Any) -> list[Comparison]:
    """Comparisons of every set with the first, or with `pairs` of every two sets."""
    chosen = combinations(sets, 2) if pairs else ((sets[0], other) for other in sets[1:])
    return [compare(a, b, **settings) for a, b in chosen]


def differences(
    both: tuple[Predictions, Predictions],
    panels: tuple[Panel, Panel],
    metrics: Sequence[Metric],
    resampling: Resampling,
) -> tuple[Difference, ...]:
    """One row per metric, with Holm's correction and the verdict."""
    rare, count = min(rare_outcomes(p) for p in panels), resampled_units(panels[0].scores)[1]
    rows = []
    first, second = (point_estimates(metrics, p) for p in panels)
    for m in metrics:
        a, b = first[m.name], second[m.name]
        row = Difference(m.name, a.value, b.value, reason=a.reason or b.reason)
        if a.value is not None and b.value is not None:
            change = abs(b.value) - abs(a.value) if m.better == "zero" else b.value - a.value
            reason = "one item: no interval" if count < 2 else too_few(m.name, rare, drawn=True)
            row = replace(row, difference=change, reason=reason)
        rows.append(row)
    values = {r.metric: (r.a, r.b) for r in rows if r.a is not None and r.b is not None and r.reason is None}
    found = tested(both, panels, values, resampling)
    adjusted = holm({name: result.p for name, result in found.items()})
    return tuple(_judged(row, found.get(row.metric), adjusted.get(row.metric), resampling.level) for row in rows)


def tested(
    both: tuple[Predictions, Predictions],
    panels: tuple[Panel, Panel],
    values: Mapping[str, tuple[float, float]],
    resampling: Resampling,
) -> dict[str, paired.Paired]:
    """The interval and p-value of the difference in each metric, given its two values."""
    if second_goes_first(panels):
        other = tested(both[::-1], panels[::-1], {name: (b, a) for name, (a, b) in values.items()}, resampling)
        return {name: result.mirrored() for name, result in other.items()}
    noise, level = PairedNoise(panels, resampling), resampling.level
    smooth = [m for m in map(METRICS.__getitem__, values) if estimated(m) is None and m.compute is not ece_classwise]
    drawn = bootstrap(panels, smooth, resampling.replicates, resampling.seed) if smooth else []
    # n units may all agree by chance, so no bootstrap of them may claim more than a sign test
    least = 2.0 ** (1 - resampled_units(panels[0].scores)[1])
    out = {}
    for name, pair in values.items():
        m, error = METRICS[name], estimated(METRICS[name])
        if error is not None:
            result = paired.calibration(error, noise, pair, level)
        elif m.compute is ece_classwise:
            result = paired.classwise(both, panels, pair, level)
        else:  # remove from the replicates what merging ranks into cells changed
            a, b = (r[name] + (v - float(on[name])) for v, (on, r) in zip(pair, drawn, strict=True))
            result = paired.smooth(m, panels, pair, (a, b), level)
        out[name] = paired.reconciled(result, least, level)
    return out


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """p-values after Holm's step-down correction (1979): the i-th smallest of n times n − i, made monotone."""
    out, least = {}, 0.0
    for i, (name, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, value * (len(p) - i)))
        out[name] = least
    return out


def _judged(row: Difference, result: paired.Paired | None, adjusted: float | None, level: float) -> Difference:
    if result is None or adjusted is None or row.difference is None:
        return row
    better = METRICS[row.metric].better
    moved = _MOVES["low" if better == "zero" else better, row.difference > 0]
    return replace(
        row,
        low=result.low,
        high=result.high,
        p=result.p,
        p_holm=adjusted,
        verdict=moved if adjusted < 1 - level else "within noise",
        method=result.method,
    )


def same_items(a: Predictions, b: Predictions, names: tuple[str, str]) -> None:
    """Raise an error that names the first row in which the two are not about the same item."""
    if a.n != b.n:
        raise InputError(f"{names[0]} has {a.n} items and {names[1]} has {b.n}; a comparison needs the same items")
    differ = (a.labels.cpu() != b.labels.cpu()).nonzero()
    if a.ids is not None and b.ids is not None and a.ids != b.ids:
        row = next(i for i, (x, y) in enumerate(zip(a.ids, b.ids, strict=True)) if x != y)
        raise InputError(
            f"{names[0]} and {names[1]} differ in row {row}: id {a.ids[row]!r} against {b.ids[row]!r}; "
            "sort both by id and keep the items they share"
        )
    if len(differ):
        row = int(differ[0])
        raise InputError(
            f"{names[0]} and {names[1]} differ in row {row}: label {int(a.labels[row])} against "
            f"{int(b.labels[row])}; a comparison needs the same items in the same order"
        )


def _predictions(x: Any, labels: Any, probs: bool, about: dict[str, Any]) -> Predictions:
    if isinstance(x, Predictions):
        return x
    return given(None, labels, probs=x, **about) if probs else given(x, labels, **about)
