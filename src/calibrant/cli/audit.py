"""`calibrant audit PREDS…`: how trustworthy is this, with intervals, and what to do next.

Everything is read, judged and rendered before anything is written or printed, so that bad input leaves
one line on stderr and nothing else.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from calibrant.cli import gate
from calibrant.cli.audit_advice import FEWEST, advice_for, before_and_after, show
from calibrant.cli.audit_inputs import Audited, Options, audited, pairs
from calibrant.cli.audit_notes import notes
from calibrant.cli.audit_rule import judged, rule_panel, show_rule
from calibrant.cli.console import block_json, say
from calibrant.decisions.judge import Judgement
from calibrant.errors import InputError
from calibrant.files import atomic, outputs
from calibrant.files.arrays import Keys
from calibrant.metrics import METRICS
from calibrant.metrics.evaluate import choose, whole
from calibrant.metrics.regimes import caveats_line
from calibrant.metrics.streaming_report import bounds_line
from calibrant.posthoc.advise import Advice
from calibrant.report import provenance
from calibrant.report.explain import HEADLINE
from calibrant.types import Report


def audit(
    preds: Annotated[
        list[Path],
        typer.Argument(help="files of predictions; a .npy of scores is followed by a .npy of labels"),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON to stdout")] = False,
    intervals: Annotated[bool, typer.Option("--intervals/--no-intervals", help="95% intervals")] = True,
    html: Annotated[Path | None, typer.Option(help="write an HTML report to this file")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="predictions on other items: fit maps on them, show before and after")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="print every metric, not only the main six")] = False,
    advise: Annotated[bool, typer.Option(help="like --calibration, with a random half of these items")] = False,
    rule: Annotated[Path | None, typer.Option(help="also judge this rule of `calibrant decide` on these items")] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option("--fail-if", help="exit with code 3 if this is true, e.g. 'ece.high > 0.05'; repeatable"),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="names, separated by commas (see `calibrant list metrics`)")
    ] = None,
    bins: Annotated[int, typer.Option(help="bins of confidence")] = 15,
    seed: Annotated[int, typer.Option(help="seed of the bootstrap")] = 0,
    about: Annotated[
        str, typer.Option(help="two classes: judge confidence in the 'top' label or in the 'positive' class")
    ] = "top",
    logits_key: Annotated[str | None, typer.Option(help="name of the logits in the file")] = None,
    probs_key: Annotated[str | None, typer.Option(help="name of the probabilities in the file")] = None,
    labels_key: Annotated[str | None, typer.Option(help="name of the labels in the file")] = None,
    predicted_key: Annotated[str | None, typer.Option(help="name of the predicted classes in a top-1 file")] = None,
    confidence_key: Annotated[str | None, typer.Option(help="name of the confidences in a top-1 file")] = None,
    labels: Annotated[Path | None, typer.Option(help="a .npy of labels, if the file has none")] = None,
    class_axis: Annotated[int, typer.Option(help="axis of the classes: 1 for logits [N, K, H, W]")] = -1,
    ignore_index: Annotated[int | None, typer.Option(help="label of items to ignore")] = None,
    allow_reuse: Annotated[bool, typer.Option(help="allow items that the map was fitted on")] = False,
    stream: Annotated[bool, typer.Option(help="one pass at fixed memory; large Parquet is streamed anyway")] = False,
    workers: Annotated[int, typer.Option(help="number of processes that read a stream")] = 1,
    exact: Annotated[bool, typer.Option(help="rank a stream exactly, by sorting on disk")] = False,
) -> None:
    """How trustworthy are these predictions, with intervals, and what to do next."""
    names = [n.strip() for n in metrics.split(",") if n.strip()] if metrics is not None else None
    computed = [m.name for m in choose(names)]
    if not computed:
        raise InputError("--metrics is empty; pass names of `calibrant list metrics`, separated by commas")
    if workers < 1:
        raise InputError(f"--workers {workers}; it must be 1 or more")
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
        exact=exact,
        stream=stream,
    )
    found = [audited(path, beside, options) for path, beside in pairs(preds, labels)]
    compared = comparisons(found, computed, options) if not as_json or html is not None else []
    told = advice_for(found, calibration, advise, html is not None, options)
    ruled = [] if rule is None else judged(rule, found, allow_reuse)
    if html is not None:
        atomic.write_text(html, _page(found, compared, told, options, ruled))
    if as_json:
        objects: list[dict[str, Any]] = [a.report.to_dict() | _noted(a) | {"made": provenance.made()} for a in found]
        if told is not None and (advise or calibration is not None):
            objects[0]["advice"] = told.to_dict()
        for each, judgement in zip(objects, ruled, strict=False):
            each["rule"] = judgement.to_dict()
        block_json(objects)
    else:
        shown = [n for n in HEADLINE if n in computed] if names is None and not everything else computed
        _show(found, compared, told, html, ruled, shown)
    passed = gate.check(gates, [a.report for a in found])
    if passed and not as_json:
        say(passed)


def _noted(each: Audited) -> dict[str, list[str]]:
    found = notes(each)
    return {"notes": found} if found else {}


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


def _page(
    found: Sequence[Audited], compared: Sequence[Any], told: Advice | None, o: Options, ruled: Sequence[Judgement]
) -> str:
    from calibrant.report import html

    parts = [
        html.Audit.of(a.predictions, a.report, notes=notes(a))
        if a.predictions is not None
        else html.Audit(a.report.file or "stream", a.report, sums=a.sums, notes=tuple(notes(a)))
        for a in found
    ]
    return html.render(
        parts,
        command=provenance.command(),
        comparison=list(compared) or None,
        advice=told,
        panels=[rule_panel(j, each.report.file) for j, each in zip(ruled, found, strict=False)],
        **before_and_after(told, o),
    )


def _show(
    found: Sequence[Audited],
    compared: Sequence[Any],
    told: Advice | None,
    html: Path | None,
    ruled: Sequence[Judgement],
    shown: Sequence[str],
) -> None:
    from calibrant.cli.layout import Console
    from calibrant.report import terminal

    console = Console()
    for each in found:
        alone = len(found) == 1
        console.print(terminal.audit(each.report, shown) if alone else terminal.verdict_line(each.report))
        lines = [caveats_line(each.report), conventions_line(each.report), bounds_line(each.report)]
        if alone and len(shown) < len(each.report):
            lines.append(f"{len(each.report) - len(shown)} more metrics: --all")
        console.print("\n".join(line for line in lines if line), style="dim", highlight=False, markup=False)
        for note in notes(each):
            console.say(f"note: {note}")
        console.print()
    if len(found) > 1:
        console.print(terminal.side_by_side([a.report for a in found], shown))
        console.print()
    for comparison in compared:
        console.print(terminal.compare_table(comparison, shown))
        console.print()
    for judgement in ruled:
        show_rule(console, judgement)
    if told is not None:
        show(console, told)
    if html is not None:
        console.say(f"the report, for a browser: {html}")
    for each in found:
        console.say(f"next: {next_line(each, told, html)}")


def next_line(each: Audited, told: Advice | None, html: Path | None) -> str:
    """One command to run next, with its reason behind it as a comment of the shell."""
    from calibrant.report.steps import CALIBRATION, next_steps

    step = next_steps(each.report)[0]
    file = shlex.quote(each.report.file or "PREDICTIONS")
    if told is not None and told.command is not None:
        return f"{told.command}  # {told.chosen} repairs it best"
    if step.command is None:
        seen = "" if html is not None else f"calibrant audit {file} --html report.html  # "
        return f"{seen}{step.title[0].lower()}{step.title[1:]}"
    splits = told is None and each.predictions is not None and each.predictions.logits is not None
    if CALIBRATION in step.command and splits and each.report.n >= FEWEST:
        return f"calibrant audit {file} --advise  # which map would repair it?"
    return f"{step.command}  # {step.title.lower()}"


def conventions_line(report: Report) -> str:
    """What the numbers are about, in one line."""
    c = report.conventions
    about = f"confidence in the {c['about']}"
    if report.k == 2 and c["about"] == "top label":
        about += " (--about positive for class 1)"
    classes = f"{report.k} classes" if report.k else "top-1 only"
    parts = [f"{report.n:,} items", classes, about, f"split {c['split']}", f"{c['bins']} right-closed bins"]
    return " · ".join([*parts, "Brier summed over classes", "sums in float64"])
