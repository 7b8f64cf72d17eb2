"""`calibrant demo`: the whole pipeline on bundled data: predictions, audit, fit, apply, a table, an HTML report.

Its predictions come from an over-trained scikit-learn network on the bundled digits, so that it needs no download.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from calibrant import files
from calibrant.cli.compare import sentence
from calibrant.data.digits_mlp import digits_predictions
from calibrant.errors import FileError
from calibrant.metrics.compare import compare
from calibrant.metrics.evaluate import evaluate
from calibrant.posthoc.fit import fit
from calibrant.posthoc.storage import save
from calibrant.types import SCHEMA, Report, jsonable

SHOWN = ("accuracy", "nll", "brier", "ece", "gap", "auroc", "aurc")
"""Enough for a first look; the report has all of them."""


def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="folder for everything that it writes")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="of the split, the network and the intervals")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable, on stdout")] = False,
) -> None:
    """The whole pipeline on bundled data: predictions, a table, an HTML report."""
    from calibrant.report import html

    _folder(out)
    with step("over-training a small network on 100 digits", as_json):
        calibration, test = digits_predictions(seed)
        written = {
            "calibration": files.write(out / "calibration.npz", calibration),
            "test": files.write(out / "test.npz", test),
        }
    with step(f"auditing its confidence on {test.n:,} other digits", as_json):
        before = files.read(written["test"])
        audited = evaluate(before, seed=seed)
    with step(f"fitting a temperature on {calibration.n:,} calibration digits, and auditing again", as_json):
        fitted = fit("temperature", files.read(written["calibration"]), seed=seed)
        written["map"] = save(fitted, out / "map")
        written["calibrated"] = files.write(out / "calibrated.npz", fitted.predictions(before))
        after = files.read(written["calibrated"])
        again = evaluate(after, seed=seed)
        comparison = compare(before, after, metrics=SHOWN, seed=seed, names=("as trained", "recalibrated"))
    with step("writing the report", as_json):
        written["report"] = html.write(
            out / "report.html",
            [html.Audit.of(before, audited)],
            after=html.Audit.of(after, again),
            comparison=comparison,
            command=f"calibrant demo -o {out} --seed {seed}",
        )
    if as_json:
        names = {name: str(path) for name, path in written.items()}
        found = {"method": fitted.method, "parameters": fitted.summary(), "guard": fitted.record.guard}
        result = {
            "schema": SCHEMA,
            "files": names,
            "fit": found,
            "before": audited.to_dict(),
            "after": again.to_dict(),
            "comparison": comparison.to_dict(),
        }
        typer.echo(json.dumps(jsonable(result), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _show(audited, again, sentence(comparison), out)


def _show(before: Report, after: Report, difference: str, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from calibrant.report import terminal, verdict

    console = Console(highlight=False)
    columns = [replace(before, file="as trained"), replace(after, file="recalibrated")]
    console.print("", terminal.side_by_side(columns, SHOWN), sep="\n")
    sentences = Table.grid(padding=(0, 2))
    for column in columns:
        sentences.add_row(f"[bold]{column.file}[/bold]", verdict.verdict(column))
    sentences.add_row("[bold]the difference[/bold]", difference)
    console.print("", sentences, sep="\n")
    console.print(f"\nthe report, for a browser:  {out / 'report.html'}")
    console.print(f"the same by hand:           calibrant audit {out / 'test.npz'}")


@contextmanager
def step(what: str, to_stderr: bool = False) -> Iterator[None]:
    """A line that says what is going on, then how long it took."""
    from rich.console import Console

    log = Console(stderr=to_stderr, highlight=False)
    start = time.perf_counter()
    with log.status(what):
        yield
    log.print(f"· {what} [dim]({time.perf_counter() - start:.1f} s)[/dim]")


def _folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{out}: cannot be a folder to write to ({error.strerror}); name another with -o") from error
