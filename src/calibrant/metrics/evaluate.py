"""`evaluate`: predictions → `Report`, with one pass over the logits, one sort, and an interval for every metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.errors import InputError, SplitError, unknown
from calibrant.files.data_frame import given
from calibrant.functional.class_names import listed
from calibrant.functional.scores import CPU, Scores, positive_class, reduce
from calibrant.metrics import METRICS
from calibrant.metrics.bootstrap import resampled_units
from calibrant.metrics.conventions import BINS, REPLICATES, Resampling, conventions
from calibrant.metrics.extras import extras
from calibrant.metrics.intervals import with_intervals
from calibrant.metrics.panel import Metric, NoItemsError, Panel
from calibrant.types import Estimate, Predictions, Report, Split

About = Literal["top", "positive"]


def evaluate(
    logits: Any = None,
    labels: Any = None,
    *,
    probs: Any = None,
    bins: int = BINS,
    metrics: Sequence[str] | None = None,
    intervals: bool = True,
    seed: int = 0,
    replicates: int = REPLICATES,
    about: About = "top",
    split: Split | str = Split.UNKNOWN,
    allow_reuse: bool = False,
    group: Any = None,
    class_axis: int = -1,
    ignore_index: int | None = None,
    classes: Sequence[Any] | None = None,
    labels_key: str | None = None,
    by: Any = None,
) -> Report:
    """Compute every metric of `metrics` (None: the default panel) with its 95% interval.

    The first argument is logits ([N, K], or [M, N, K] for members), `Predictions`, or a data frame whose column
    `labels_key` holds the labels. Text labels need `classes`, the class names in the order of the scores. With
    `about="positive"`, for two classes, confidence is the probability of class 1. `by` names a column of the data
    frame, or holds one value per item (hospital, device). Then `report.by` has the main metrics of each part and names
    the worst.
    """
    arrays = {
        "data": logits,
        "labels": labels,
        "labels_key": labels_key,
        "probs": probs,
        "classes": classes,
        "split": split,
        "class_axis": class_axis,
        "ignore_index": ignore_index,
        "group": group,
    }
    p = given(**arrays)
    how: dict[str, Any] = {"bins": bins, "intervals": intervals, "seed": seed, "replicates": replicates}
    how |= {"about": about, "allow_reuse": allow_reuse}
    report = evaluate_predictions(p, metrics, **how)
    if by is None:
        return report
    from calibrant.metrics.subgroups import by_values

    return replace(report, by=by_values(p, by, arrays, metrics, **how))


def evaluate_predictions(
    p: Predictions,
    metrics: Sequence[str] | None,
    *,
    bins: int = BINS,
    intervals: bool = True,
    seed: int = 0,
    replicates: int = REPLICATES,
    about: About = "top",
    allow_reuse: bool = False,
) -> Report:
    """`evaluate` for `Predictions`."""
    reused = refuse_reuse(p, allow_reuse)
    if about not in ("top", "positive"):
        raise InputError(f"about={about!r} is unknown; use 'top' or 'positive'")
    classwise = metrics is None or "ece_classwise" in metrics
    home = CPU if p.logits is None or p.group is not None else p.logits.device  # groups are drawn on the CPU
    scores = reduce(p, checked_count("bins", bins, 1), classwise=classwise, home=home)
    report = evaluate_scores(
        positive_class(scores, p.source) if about == "positive" else scores,
        metrics=metrics,
        resampling=Resampling(seed, checked_count("replicates", replicates, 20)) if intervals else None,
        members=p.members,
        binary=p.binary,
        split=p.split,
        allow_reuse=reused,
    )
    named = {} if p.classes is None else {"classes": listed(p.classes)}
    return replace(report, file=p.source or None, predictions=p, conventions={**report.conventions, **named})


def evaluate_scores(
    scores: Scores,
    *,
    metrics: Sequence[str] | None = None,
    resampling: Resampling | None = None,
    members: int = 1,
    binary: bool = False,
    split: str = "unknown",
    allow_reuse: bool = False,
) -> Report:
    """The report of `Scores`; with `resampling=None`, without intervals."""
    chosen = chosen_metrics(metrics)
    panel = Panel(scores)
    estimates = point_estimates(chosen, panel)
    interval = None
    if resampling is not None:
        estimates = with_intervals(panel, chosen, estimates, resampling)
        interval = resampling.describe(resampled_units(scores)[0])
    return Report(
        metrics=estimates,
        n=scores.n,
        k=scores.k,
        conventions=conventions(
            bins=scores.bins,
            about=scores.about,
            members=members,
            binary=binary,
            split=str(split),
            allow_reuse=allow_reuse,
            interval=interval,
        ),
        extras=extras(panel, resampling, whole=metrics is None),
        percent=frozenset(m.name for m in chosen if m.percent),
    )


def chosen_metrics(names: Sequence[str] | None) -> list[Metric]:
    """The metrics of these names, in their order; None means the default panel."""
    if names is None:
        return [m for m in METRICS.values() if m.default]
    if isinstance(names, str):
        names = [names]
    for name in names:
        if not isinstance(name, str) or name not in METRICS:
            raise unknown("metric", str(name), METRICS)
    return [METRICS[name] for name in names]


def point_estimates(metrics: Sequence[Metric], panel: Panel) -> dict[str, Estimate]:
    """The values without intervals; a value that does not exist is None, with a reason. Values on a device are fetched
    together."""
    missing: dict[str, str | None] = {}
    found: dict[str, Tensor] = {}
    for m in metrics:
        try:
            missing[m.name] = m.missing(panel)
            if missing[m.name] is None:
                found[m.name] = m(panel)
        except NoItemsError:
            missing[m.name] = "not available from a stream"
    there = {name: value for name, value in found.items() if not value.is_cpu}
    home = dict(zip(there, torch.cat(list(there.values())).tolist(), strict=True)) if there else {}
    out = {}
    for name, reason in missing.items():
        value = math.nan if reason else home[name] if name in home else float(found[name])
        fine = math.isfinite(value)
        out[name] = Estimate(value) if fine else Estimate(None, reason=reason or f"not finite ({value})")
    return out


def refuse_reuse(p: Predictions, allow_reuse: bool) -> bool:
    """Whether the map was fitted on these items. That is an error unless the caller allows it."""
    if not p.fitted_on or p.fitted_on != (p.origin or p.fingerprint()):
        return False
    if not allow_reuse:
        raise SplitError(
            f"{p.source or 'these predictions'}: the map was fitted on the same items that it is judged on; "
            "report on other items, or say allow_reuse=True (--allow-reuse)"
        )
    return True


def checked_count(name: str, value: int, least: int, most: int = 10**6) -> int:
    """The number, if it is whole and between `least` and `most`; more than a million bins is surely a mistake."""
    try:
        fine = not isinstance(value, bool) and int(value) == value and least <= value <= most
    except (TypeError, ValueError, OverflowError):  # None, NaN, infinity
        fine = False
    if not fine:
        raise InputError(f"{name}={value!r}; it must be a whole number, {least} or more (and {most:,} at most)")
    return int(value)


def plan(report: Report, width: float) -> dict[str, int | None]:
    """How many items each metric needs for a 95% interval of this width (0.02 is two points); None without an interval.

        n_needed = n · (width_now / width)²

    Every interval here shrinks like 1/√n, whatever its method. The present width reflects the variance of this file and
    the design effect of its groups. The answer is a forecast, because the present width is an estimate too.
    """
    if not 0 < width < 1:
        raise InputError(f"width {width:g}; pass the width of the interval as a share, such as 0.02 for two points")
    out: dict[str, int | None] = {}
    for name, e in report.items():
        now = None if e.low is None or e.high is None else e.high - e.low
        out[name] = math.ceil(report.n * (now / width) ** 2) if now else None
    return out
