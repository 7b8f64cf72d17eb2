"""`calibrant audit PREDS…`: how trustworthy is this, with intervals, and what to do next.

Everything is read, judged and rendered before anything is written or printed, so that bad input leaves
one line on stderr and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import calibrant.provenance as provenance
from calibrant.cli import gate
from calibrant.cli.audit_advice import advice_for
from calibrant.cli.audit_groups import grouped
from calibrant.cli.audit_inputs import Audited, Options, audited, pairs
from calibrant.cli.audit_rule import judged
from calibrant.cli.audit_show import page, show
from calibrant.cli.console import block_json, say
from calibrant.cli.options import (
    Bins,
    BootstrapSeed,
    ClassAxis,
    ConfidenceKey,
    Everything,
    Html,
    IgnoreIndex,
    Intervals,
    Json,
    Labels,
    LabelsKey,
    LogitsKey,
    Metrics,
    PredictedKey,
    ProbsKey,
)
from calibrant.errors import InputError
from calibrant.files import atomic, outputs
from calibrant.files.arrays import Keys
from calibrant.metrics import METRICS
from calibrant.metrics.evaluate import choose, plan, whole
from calibrant.report.explain import HEADLINE


def audit(
    preds: Annotated[
        list[Path],
        typer.Argument(help="files of predictions; a .npy of scores is followed by a .npy of labels"),
    ],
    as_json: Json = False,
    intervals: Intervals = True,
    html: Html = None,
    calibration: Annotated[
        Path | None, typer.Option(help="predictions on other items: fit maps on them, show before and after")
    ] = None,
    everything: Everything = False,
    advise: Annotated[bool, typer.Option(help="like --calibration, with a random half of these items")] = False,
    by: Annotated[
        str | None, typer.Option(help="a column of the file, e.g. hospital: the same numbers in each of its groups")
    ] = None,
    width: Annotated[
        float | None, typer.Option("--plan", help="how many items would give intervals of this width, e.g. 0.02")
    ] = None,
    rule: Annotated[Path | None, typer.Option(help="also judge this rule of `calibrant decide` on these items")] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option("--fail-if", help="exit with code 3 if this is true, e.g. 'ece.high > 0.05'; repeatable"),
    ] = None,
    metrics: Metrics = None,
    bins: Bins = 15,
    seed: BootstrapSeed = 0,
    about: Annotated[
        str, typer.Option(help="two classes: judge confidence in the 'top' label or in the 'positive' class")
    ] = "top",
    logits_key: LogitsKey = None,
    probs_key: ProbsKey = None,
    labels_key: LabelsKey = None,
    predicted_key: PredictedKey = None,
    confidence_key: ConfidenceKey = None,
    labels: Labels = None,
    class_axis: ClassAxis = -1,
    ignore_index: IgnoreIndex = None,
    allow_reuse: Annotated[bool, typer.Option(help="allow items that the map was fitted on")] = False,
    stream: Annotated[bool, typer.Option(help="one pass at fixed memory; large Parquet is streamed anyway")] = False,
    workers: Annotated[int, typer.Option(help="number of processes that read a stream")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(help="a Ray cluster that reads a stream: its address, or local"),
    ] = None,
    exact: Annotated[bool, typer.Option(help="rank a stream exactly, by sorting on disk")] = False,
) -> None:
    """How trustworthy are these predictions, with intervals, and what to do next."""
    names = [n.strip() for n in metrics.split(",") if n.strip()] if metrics is not None else None
    computed = [m.name for m in choose(names)]
    if not computed:
        raise InputError("--metrics is empty; pass names of `calibrant list metrics`, separated by commas")
    if workers < 1:
        raise InputError(f"--workers {workers} must be 1 or more")
    if ray is not None and workers > 1:
        raise InputError("--ray and --workers both say who reads a stream; use one of them")
    if width is not None and not intervals:
        raise InputError("--plan needs intervals; leave out --no-intervals")
    gates = [gate.parse(text, METRICS, computed) for text in fail_if or ()]
    outputs.check((html, outputs.PAGE), inputs=[*preds, calibration, labels, rule])
    options = Options(
        keys=Keys(logits_key, probs_key, labels_key, predicted_key, confidence_key),
        metrics=names,
        bins=whole("bins", bins, 1),  # a stream is not evaluated, and must be told too
        seed=seed,
        intervals=intervals,
        about=_about(about),
        class_axis=class_axis,
        ignore_index=ignore_index,
        allow_reuse=allow_reuse,
        workers=workers,
        ray=ray,
        exact=exact,
        stream=stream or ray is not None,
    )
    paths = pairs(preds, labels)
    found = [replace(audited(path, beside, options), labels=beside) for path, beside in paths]
    if by is not None:
        found = [replace(a, by=grouped(a, *path, by, options)) for a, path in zip(found, paths, strict=True)]
    if width is not None:
        found = [replace(a, plan={"width": width, "items": plan(a.report, width)}) for a in found]
    if rule is not None:
        found = [replace(a, rule=j) for a, j in zip(found, judged(rule, found, allow_reuse), strict=True)]
    compared = comparisons(found, computed, options) if not as_json or html is not None else []
    told = advice_for(found, calibration, advise, html is not None, options)
    if html is not None:
        atomic.write_text(html, page(found, compared, told, options))
    if as_json:
        objects = [a.to_dict() | {"made": provenance.made()} for a in found]
        if told is not None and (advise or calibration is not None):
            objects[0]["advice"] = told.to_dict()
        block_json(objects)
    else:
        shown = [n for n in HEADLINE if n in computed] if names is None and not everything else computed
        show(found, compared, told, html, shown, options)
    passed = gate.check(gates, [a.report for a in found])
    if passed and not as_json:
        say(passed)


def comparisons(found: Sequence[Audited], metrics: Sequence[str], o: Options) -> list[Any]:
    """Paired comparisons of every two inputs that are about the same items; none where labels differ."""
    held = [a.predictions for a in found if a.predictions is not None]
    same = [(a, b) for a, b in combinations(held, 2) if a.n == b.n and bool((a.labels.cpu() == b.labels.cpu()).all())]
    if not o.intervals or not same:
        return []
    from calibrant.metrics.compare import compare

    return [compare(a, b, metrics=list(metrics), seed=o.seed, bins=o.bins) for a, b in same]


def _about(text: str) -> Literal["top", "positive"]:
    if text == "top":
        return "top"
    if text == "positive":
        return "positive"
    raise InputError(f"--about {text!r} is unknown; use top or positive")
