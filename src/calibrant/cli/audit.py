"""`calibrant audit PREDS…`: how trustworthy is this, with intervals, and what to do next.

Everything is read, judged and rendered before anything is written or printed, so that bad input leaves
one line on stderr and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from calibrant import files
from calibrant.cli import gate
from calibrant.errors import FileError, InputError
from calibrant.metrics import METRICS
from calibrant.metrics.evaluate import choose, evaluate
from calibrant.types import Predictions, Report, jsonable


@dataclass(frozen=True)
class Audited:
    """One input and what was found. `predictions` is None when the file was streamed."""

    report: Report
    predictions: Predictions | None


def audit(
    preds: Annotated[
        list[Path],
        typer.Argument(help="files of predictions; a .npy of scores is followed by a .npy of labels"),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable, on stdout")] = False,
    intervals: Annotated[bool, typer.Option("--intervals/--no-intervals", help="95 % intervals, by bootstrap")] = True,
    fail_if: Annotated[
        list[str] | None,
        typer.Option("--fail-if", help="a gate, as 'ece.high > 0.05': exit code 3 if true; repeatable"),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="names, separated by commas (see `calibrant list metrics`)")
    ] = None,
    bins: Annotated[int, typer.Option(help="bins of confidence")] = 15,
    seed: Annotated[int, typer.Option(help="of the bootstrap")] = 0,
    about: Annotated[
        str, typer.Option(help="of two classes: confidence in the 'top' label, or in the 'positive' class")
    ] = "top",
    logits_key: Annotated[str | None, typer.Option(help="name of the logits in the file")] = None,
    probs_key: Annotated[str | None, typer.Option(help="name of the probabilities in the file")] = None,
    labels_key: Annotated[str | None, typer.Option(help="name of the labels in the file")] = None,
    labels: Annotated[Path | None, typer.Option(help="a .npy of labels, where the file has none")] = None,
    class_axis: Annotated[int, typer.Option(help="axis of the classes: 1 for images of labels")] = -1,
    ignore_index: Annotated[int | None, typer.Option(help="label of items that do not count")] = None,
    allow_reuse: Annotated[bool, typer.Option(help="report on the items that a map was fitted on")] = False,
) -> None:
    """How trustworthy are these predictions, with intervals, and what to do next."""
    names = [n.strip() for n in metrics.split(",") if n.strip()] if metrics is not None else None
    computed = [m.name for m in choose(names)]
    if not computed:
        raise InputError("--metrics names no metric")
    gates = [gate.parse(text, METRICS, computed) for text in fail_if or ()]
    side: Literal["top", "positive"] = _about(about)

    def one(path: Path, beside: Path | None) -> Audited:
        p = files.read(
            path,
            labels=beside,
            logits_key=logits_key,
            probs_key=probs_key,
            labels_key=labels_key,
            class_axis=class_axis,
            ignore_index=ignore_index,
        )
        return Audited(
            evaluate(p, bins=bins, metrics=names, intervals=intervals, seed=seed, about=side, allow_reuse=allow_reuse),
            p,
        )

    found = [one(path, beside) for path, beside in pairs(preds, labels)]
    if as_json:
        typer.echo(
            json.dumps([jsonable(a.report.to_dict()) for a in found], indent=2, ensure_ascii=False, allow_nan=False)
        )
    else:
        _show(found)
    gate.check(gates, [a.report for a in found])


def pairs(preds: Sequence[Path], labels: Path | None) -> list[tuple[Path, Path | None]]:
    """Each file with its labels: a `.npy` takes the next `.npy` as its labels unless `--labels` names them."""
    if labels is not None:
        return [(path, labels) for path in preds]
    found: list[tuple[Path, Path | None]] = []
    waiting: Path | None = None
    for path in preds:
        if path.suffix != ".npy":
            found.append((path, None))
        elif waiting is None:
            waiting = path
        else:
            found.append((waiting, path))
            waiting = None
    if waiting is not None:
        files.existing(waiting)
        raise FileError(f"{waiting}: a .npy of scores needs a .npy of labels after it, or --labels FILE.npy")
    return found


def _about(text: str) -> Literal["top", "positive"]:
    if text == "top":
        return "top"
    if text == "positive":
        return "positive"
    raise InputError(f"--about {text!r} is unknown; use top or positive")


def _show(found: Sequence[Audited]) -> None:
    from rich.console import Console

    from calibrant.report import terminal

    console = Console()
    for each in found:
        console.print(terminal.audit(each.report))
        console.print(conventions_line(each.report), style="dim", highlight=False)
        console.print(next_step(each), style="dim", highlight=False)
        console.print()
    if len(found) > 1:
        console.print(terminal.side_by_side([a.report for a in found]))


def conventions_line(report: Report) -> str:
    c = report.conventions
    about = f"confidence in the {c['about']}"
    parts = [f"{report.n:,} items", f"{report.k} classes" if report.k else "top-1 only", about, f"split {c['split']}"]
    parts += [f"{c['bins']} right-closed bins", "Brier summed over classes", "float64"]
    if report.k == 2 and c["about"] == "top label":
        parts[2] += " (--about positive for class 1)"
    return " · ".join(parts)


def next_step(audited: Audited) -> str:
    """One line on what to do with this verdict."""
    from calibrant.report.verdict import judge

    kind, name = judge(audited.report).kind, audited.report.file or "FILE"
    if audited.report.k is None:
        return "next: save logits instead of top-1 answers; then a map can be fitted, and all metrics exist"
    if kind in ("over", "under", "uneven"):
        return f"next: calibrant fit HELD_OUT -o map/ && calibrant apply map/ {name} -o calibrated.npz, then audit that"
    if kind == "calibrated":
        return f"next: choose a threshold (calibrant audit {name} --html report.html), and audit again on shifted data"
    return "next: audit more items, with intervals"
