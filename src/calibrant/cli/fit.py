"""`calibrant fit PREDS [--method auto] -o MAP/`: fit a map on held-out predictions, check that it helps, write it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.console import block_json
from calibrant.cli.layout import Bar, Console
from calibrant.cli.options import Json
from calibrant.cli.reading import Reading
from calibrant.errors import InputError
from calibrant.files import outputs
from calibrant.files.paths import calibrated, partner
from calibrant.posthoc.fit import fit_predictions, resolve
from calibrant.posthoc.guard import sentence
from calibrant.posthoc.map import FittedMap
from calibrant.types import SCHEMA

SHOWN = 8
"""Candidates of the automatic choice that are printed, best first."""
REASONS = {
    "NLL rises": "NLL rises",
    "AUROC": "AUROC falls",
    "out of bounds": "out of bounds",
    "budget": "over budget",
    "labels": "labels",
}
"""Word in the reason why a candidate was not chosen → that reason in the table."""


def fit(
    preds: Annotated[Path, typer.Argument(help="predictions on items that you will not report on")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="folder for the map")] = None,
    method: Annotated[
        str, typer.Option(help="auto, a name of `calibrant list calibrators`, or two joined by +")
    ] = "auto",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a setting of the method, e.g. bins=10; repeatable")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="auto: seconds that it may take (default: 30)")] = None,
    strict: Annotated[bool, typer.Option(help="refuse a map that the guard flags, with exit code 1")] = False,
    allow_reuse: Annotated[bool, typer.Option(help="allow fitting on a test split")] = False,
    seed: Annotated[int, typer.Option(help="seed of the folds")] = 0,
    as_json: Json = False,
    everything: Annotated[bool, typer.Option("--all", help="auto: print every candidate, not only the best")] = False,
    *,
    reading: Reading,
) -> None:
    outputs.check((out, outputs.MAP), inputs=[preds, reading.labels])
    chosen = dict(setting(text) for text in settings or ())
    if budget is not None:
        if method != "auto":
            raise InputError(f"--budget belongs to --method auto, not to {method}")
        chosen["budget"] = budget
    calibrator = resolve(method, chosen, seed)
    p = reading.read(preds)
    with Bar("trying maps") as bar:
        fitted = fit_predictions(calibrator, p, strict=strict, allow_reuse=allow_reuse, seed=seed, progress=bar.share)
    if out is not None:
        fitted.save(out)
    if as_json:
        block_json(described(fitted, out))
    else:
        show(fitted, out, preds, everything, reading)


def described(fitted: FittedMap, out: Path | None = None) -> dict[str, Any]:
    """What `--json` prints."""
    r = fitted.record
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "method": r.calibrator,
        "parameters": fitted.summary(),
        "certificate": dict(r.certificate),
        "guard": dict(r.guard),
        "nll_before": r.nll_before,
        "nll_after": r.nll_after,
        "settings": dict(r.settings),
        "n": r.n,
        "k": r.k,
        "split": r.split,
        "allow_reuse": r.reuse,
        "map": None if out is None else str(out),
    }
    if r.ranking:
        found |= {"ranking": list(r.ranking), "cut": r.cut or None}
    return found


def show(fitted: FittedMap, out: Path | None, preds: Path, everything: bool, reading: Reading) -> None:
    """Print what was fitted, and the command that applies it to the test predictions beside these."""
    from calibrant.report import terminal
    from calibrant.report.panels import Table

    console, r = Console(), fitted.record
    if r.ranking:
        best = [row for i, row in enumerate(r.ranking) if everything or i < SHOWN or row["status"] == "chosen"]
        chosen = next((i for i, row in enumerate(best) if row["status"] == "chosen"), None)
        console.print(terminal.text_table(Table.of("", [ranked(row) for row in best], chosen)))
        if len(best) < len(r.ranking):
            console.say(f"{len(r.ranking) - len(best)} more candidates: --all", "dim")
        if r.cut:
            console.say(f"{r.cut}; the choice may change with a larger --budget", "bold red")
        console.print()
    parameters = ", ".join(
        f"{name} {value:.6g}" for name, value in fitted.summary().items() if isinstance(value, float)
    )
    console.say(f"{r.calibrator}: {parameters}" if parameters else r.calibrator, "bold")
    if r.nll_before is not None and r.nll_after is not None:
        console.say(f"NLL on the {r.n:,} items it was fitted on: {r.nll_before:.4f} → {r.nll_after:.4f}")
    console.say(f"guard {sentence(r.guard)}", "" if r.guard.get("ok") else "bold red")
    if r.reuse:
        console.say("fitted on a test split, on purpose (--allow-reuse)", "bold red")
    console.say(f"written to {out}" if out is not None else "not written: pass a folder with -o")
    if out is not None:
        test = partner(preds)
        judged = "PREDICTIONS" if test is None else shlex.quote(str(test))
        labels = None if reading.labels is None else partner(reading.labels)
        like = reading.words + (f" --labels {shlex.quote(str(labels))}" if labels else "")
        console.say(f"next: calibrant apply {shlex.quote(str(out))} {judged} -o {calibrated(preds)}{like}")


def setting(text: str) -> tuple[str, Any]:
    """`key=value`; the value is JSON where it can be, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {text!r} is not of the form key=value")
    try:
        return key.strip(), json.loads(value)
    except json.JSONDecodeError:
        return key.strip(), value.strip()


def ranked(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the ranking, short enough for a terminal; `--json` has all of it."""
    excess, reason, status = row.get("excess"), row.get("reason") or "", str(row["status"])
    why = next((short for word, short in REASONS.items() if word in reason), reason[:24])
    return {
        "method": row["method"].replace("+", " + ") + _variant(row["method"], row["settings"]),
        "held-out NLL": row["nll"]["value"] if row.get("nll") else None,
        "above best": None if not excess else f"{excess['value']:.4f} ± {(excess['high'] - excess['low']) / 2:.4f}",
        "numbers": row.get("degrees"),
        "": f"{status}: {why}" if why else "" if status == "ran" else status,
    }


def _variant(method: str, settings: Mapping[str, Any]) -> str:
    """The setting that tells two rows of one method apart: its kind, or whether its penalty was searched for."""
    from calibrant.posthoc import CALIBRATORS

    if "kind" in settings and settings["kind"] != CALIBRATORS[method]().settings()["kind"]:
        return " (1 vs rest)" if settings["kind"] == "one_vs_rest" else " (top label)"
    return " (penalty searched)" if "penalty" in settings and settings["penalty"] is None else ""
