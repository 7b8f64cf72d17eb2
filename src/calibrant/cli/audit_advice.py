"""The advice of `audit`: which map would repair the confidence, and the numbers before and after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.cli.audit_inputs import FEWEST, Audited, Options
from calibrant.errors import InputError
from calibrant.posthoc.advise import Advice, advise

BUDGET = 5.0
"""Seconds that the choice of a map may take."""


def advice_for(found: Sequence[Audited], calibration: Path | None, asked: bool, o: Options) -> Advice | None:
    """Advice on one file. If it cannot be given, that is an error only if an option asked for it."""
    if (why := _obstacle(found, calibration)) is not None:
        if asked or calibration is not None:
            raise InputError(why)
        return None
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


def before_and_after(advice: Advice | None, o: Options) -> dict[str, Any]:
    """The audits before and after the recommended map, as arguments of `html.render`."""
    if advice is None or advice.before is None or advice.after is None:
        return {}
    from calibrant.metrics.evaluate import evaluate
    from calibrant.report import html

    named = {"before": (advice.before, f"before {advice.chosen}"), "after": (advice.after, f"after {advice.chosen}")}
    return {side: html.Audit.of(p, evaluate(p, **o.judging), name) for side, (p, name) in named.items()}


def show_advice(console: Any, advice: Advice) -> None:
    """Print the table of maps and the recommendation."""
    from calibrant.report import terminal
    from calibrant.report.panels import Table

    rows = [
        {"": row["method"].replace("+", " + ")}
        | {name: (row[name]["value"] if row[name] else None) for name in ("nll", "ece", "brier", "auroc", "accuracy")}
        | {"verdict": row.get("nll verdict")}
        for row in advice.rows
    ]
    chosen = next((i for i, row in enumerate(advice.rows) if row["method"] == advice.chosen), None)
    console.print(terminal.text_table(Table.of("", rows, chosen)))
    console.say(advice.how, "dim")
    console.say(advice.sentence, "bold")
    console.print()
