"""`calibrant demo`: the whole pipeline on bundled data, in half a minute: files, a table, an HTML report.

Until it can use the training engine, its predictions come from an over-trained scikit-learn network on digits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from calibrant import files
from calibrant.data.digits_mlp import digits_predictions
from calibrant.errors import FileError
from calibrant.metrics.evaluate import evaluate
from calibrant.report import terminal
from calibrant.types import SCHEMA, jsonable

SHOWN = ("accuracy", "nll", "brier", "ece", "gap", "auroc", "aurc")
"""Enough for a first look; the report has all of them."""


def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="folder for everything that it writes")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="of the split, the network and the intervals")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable, on stdout")] = False,
) -> None:
    """The whole pipeline on bundled data: predictions, a table, an HTML report."""
    log = Console(stderr=as_json, highlight=False)
    folder(out)
    with step(log, "over-training a small network on 100 digits"):
        calibration, test = digits_predictions(seed)
    calibration_file = files.write(out / "calibration.npz", calibration)
    test_file = files.write(out / "test.npz", test)
    with step(log, f"auditing it on {test.n} others"):
        before = evaluate(files.read(test_file), seed=seed)
    if as_json:
        written = {"calibration": str(calibration_file), "test": str(test_file)}
        result = {"schema": SCHEMA, "files": written, "before": before.to_dict()}
        typer.echo(json.dumps(jsonable(result), indent=2, ensure_ascii=False))
        return
    log.print()
    log.print(terminal.verdict_line(before))
    log.print()
    log.print(terminal.side_by_side([before], SHOWN))


def folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{out}: cannot be a folder to write to ({error.strerror}); name another with -o") from error


@contextmanager
def step(log: Console, what: str) -> Iterator[None]:
    """A line that says what is going on, then how long it took."""
    start = time.perf_counter()
    with log.status(what):
        yield
    log.print(f"· {what} [dim]({time.perf_counter() - start:.1f} s)[/dim]")
