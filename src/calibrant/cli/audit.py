"""`calibrant audit PREDS…`: how trustworthy are these predictions, with intervals, and what to do next.

Everything is read, judged and rendered before anything is written or printed. Bad input leaves one line on stderr and
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import calibrant.provenance as provenance
from calibrant.cli import gate
from calibrant.cli.audit_inputs import FEWEST, Audited, Options, audited
from calibrant.cli.audit_show import page, show
from calibrant.cli.console import block_json, say
from calibrant.cli.options import Everything, Html, Json
from calibrant.display import HEADLINE
from calibrant.errors import InputError
from calibrant.files import atomic, outputs
from calibrant.metrics import METRICS
from calibrant.metrics.evaluate import chosen_metrics

if TYPE_CHECKING:
    from calibrant.posthoc.advise import Advice

BUDGET = 5.0
"""Seconds that the choice of a map may take."""


def audit(
    preds: Annotated[
        list[Path],
        typer.Argument(help="files of predictions; a .npy of scores is followed by a .npy of labels"),
    ],
    as_json: Json = False,
    html: Html = None,
    calibration: Annotated[
        Path | None, typer.Option(help="predictions on other items: fit maps on them, and show before and after")
    ] = None,
    everything: Everything = False,
    advise: Annotated[bool, typer.Option(help="like --calibration, but fit on a random half of these items")] = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option("--fail-if", help="exit with code 3 if this is true, e.g. 'ece.high > 0.05'; repeatable"),
    ] = None,
    *,
    options: Options,
) -> None:
    computed = [m.name for m in chosen_metrics(options.names)]
    gates = [gate.parse(text, METRICS, computed) for text in fail_if or ()]
    outputs.check((html, outputs.PAGE), inputs=[*preds, calibration, options.reading.labels, options.rule])
    found = [audited(path, reading, options) for path, reading in options.reading.each(preds)]
    compared = comparisons(found, computed, options) if not as_json or html is not None else []
    advice = None
    if calibration is not None or advise or html is not None:
        advice = advice_for(found, calibration, advise, options)
    if html is not None:
        atomic.write_text(html, page(found, compared, advice, options))
    if as_json:
        objects = [a.to_dict() | {"made": provenance.made()} for a in found]
        if advice is not None and (advise or calibration is not None):
            objects[0]["advice"] = advice.to_dict()
        block_json(objects)
    else:
        shown = [n for n in HEADLINE if n in computed] if options.names is None and not everything else computed
        show(found, compared, advice, html, shown)
    passed = gate.check(gates, [a.report for a in found])
    if passed and not as_json:
        say(passed)


def comparisons(found: Sequence[Audited], metrics: Sequence[str], options: Options) -> list[Any]:
    """Paired comparisons of every two inputs with the same labels."""
    held = [a.predictions for a in found if a.predictions is not None]
    same = [(a, b) for a, b in combinations(held, 2) if a.n == b.n and bool((a.labels.cpu() == b.labels.cpu()).all())]
    if not options.intervals or not same:
        return []
    from calibrant.metrics.compare import compare

    return [compare(a, b, metrics=list(metrics), seed=options.seed, bins=options.bins) for a, b in same]


def advice_for(found: Sequence[Audited], calibration: Path | None, asked: bool, o: Options) -> Advice | None:
    """The advice for one file: which map would repair it. No advice is an error only if an option asked for it."""
    if (why := _obstacle(found, calibration)) is not None:
        if asked or calibration is not None:
            raise InputError(why)
        return None
    from calibrant.posthoc.advise import advise

    p, reading = found[0].predictions, found[0].reading
    assert p is not None
    held = None if calibration is None else reading.read_calibration(calibration)
    return advise(p, held, seed=o.seed, budget=BUDGET, allow_reuse=o.allow_reuse)


def _obstacle(found: Sequence[Audited], calibration: Path | None) -> str | None:
    """Why there is no advice; None if there is."""
    if len(found) != 1:
        return f"--calibration and --advise are about one file, not {len(found)}"
    p, file = found[0].predictions, found[0].report.file
    if p is None or p.logits is None:
        why = "was streamed" if p is None else "holds only predicted and confidence"
        return f"{file}: no advice, because it {why}; pass logits that fit into memory"
    if calibration is None and p.n < FEWEST:
        return f"{file}: {p.n} items are too few to split; pass --calibration FILE"
    return None
