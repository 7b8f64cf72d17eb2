"""`calibrant audit PREDS…`: how trustworthy is this, with intervals, and what to do next.

Everything is read, judged and rendered before anything is written or printed, so that bad input leaves
one line on stderr and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer

import calibrant.provenance as provenance
from calibrant.cli import gate
from calibrant.cli.audit_inputs import Audited, Options, audited, grouped, ruled
from calibrant.cli.audit_show import page, show
from calibrant.cli.console import block_json, say
from calibrant.cli.options import Everything, Html, Intervals, Json
from calibrant.display import HEADLINE
from calibrant.errors import InputError
from calibrant.files import atomic, outputs
from calibrant.metrics import METRICS
from calibrant.metrics.evaluate import chosen_metrics, plan


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
    *,
    options: Options,
) -> None:
    """How trustworthy are these predictions, with intervals, and what to do next."""
    o = replace(options, intervals=intervals)
    computed = [m.name for m in chosen_metrics(o.names)]
    if width is not None and not intervals:
        raise InputError("--plan needs intervals; leave out --no-intervals")
    gates = [gate.parse(text, METRICS, computed) for text in fail_if or ()]
    outputs.check((html, outputs.PAGE), inputs=[*preds, calibration, o.reading.labels, rule])
    found = _found(preds, by, width, rule, o)
    compared = comparisons(found, computed, o) if not as_json or html is not None else []
    told = None
    if calibration is not None or advise or html is not None:
        from calibrant.cli.audit_advice import advice_for

        told = advice_for(found, calibration, advise, o)
    if html is not None:
        atomic.write_text(html, page(found, compared, told, o))
    if as_json:
        objects = [a.to_dict() | {"made": provenance.made()} for a in found]
        if told is not None and (advise or calibration is not None):
            objects[0]["advice"] = told.to_dict()
        block_json(objects)
    else:
        shown = [n for n in HEADLINE if n in computed] if o.names is None and not everything else computed
        show(found, compared, told, html, shown)
    passed = gate.check(gates, [a.report for a in found])
    if passed and not as_json:
        say(passed)


def _found(preds: Sequence[Path], by: str | None, width: float | None, rule: Path | None, o: Options) -> list[Audited]:
    """Every input read and judged, with what else was asked for."""
    paths = o.reading.each(preds)
    found = [audited(path, reading, o) for path, reading in paths]
    if by is not None:
        found = [replace(a, by=grouped(a, path, by, o)) for a, (path, _) in zip(found, paths, strict=True)]
    if width is not None:
        found = [replace(a, plan={"width": width, "items": plan(a.report, width)}) for a in found]
    if rule is not None:
        from calibrant.decisions.storage import load_rule

        chosen = load_rule(rule)
        found = [replace(a, rule=ruled(a, chosen, o)) for a in found]
    return found


def comparisons(found: Sequence[Audited], metrics: Sequence[str], o: Options) -> list[Any]:
    """Paired comparisons of every two inputs that are about the same items; none where labels differ."""
    held = [a.predictions for a in found if a.predictions is not None]
    same = [(a, b) for a, b in combinations(held, 2) if a.n == b.n and bool((a.labels.cpu() == b.labels.cpu()).all())]
    if not o.intervals or not same:
        return []
    from calibrant.metrics.compare import compare

    return [compare(a, b, metrics=list(metrics), seed=o.seed, bins=o.bins) for a, b in same]
