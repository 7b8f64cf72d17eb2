"""`calibrant demo`: the whole pipeline on bundled data: train three ways, audit, fit, apply, one table, one report.

The same small network overfits 150 digits with cross-entropy, focal loss and label smoothing, and the automatic choice
recalibrates each. The table judges calibration *and* refinement, before and after. The files at the top level belong to
the cross-entropy network. Trainings are kept under `runs/`, named by the content of their recipes, and not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant import files
from calibrant.cli.console import block_json
from calibrant.cli.options import Json
from calibrant.display import HEADLINE
from calibrant.files import outputs
from calibrant.metrics.compare import Comparison, compare
from calibrant.metrics.evaluate import evaluate
from calibrant.posthoc.fit import fit
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.storage import save
from calibrant.report.comparison import sentence
from calibrant.types import SCHEMA, Predictions, Report

TRAININGS = {
    "cross-entropy": "digits/cross_entropy",
    "focal loss": "digits/focal",
    "label smoothing": "digits/smoothing",
}

OVERTRAINED = {
    "data.sizes": {"train": 150, "validation": 97, "calibration": 600, "test": 950},
    # without BatchNorm and with a constant rate, logits keep growing long after the network fits the data
    "network": {"name": "mlp", "hidden": [256, 256], "batch_norm": False},
    "optimiser.lr": 0.003,
    "schedule.name": "constant",
    "epochs": 150,
    "batch": 50,
}


@dataclass(frozen=True)
class Trained:
    """One training: its predictions and reports, before and after recalibration."""

    name: str
    run: Path
    test: Predictions
    audited: Report
    fitted: FittedMap
    after: Predictions
    again: Report

    def rows(self) -> tuple[tuple[str, Report], ...]:
        return (self.name, self.audited), (f"  + {self.fitted.method}", self.again)


def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="folder of all output")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="seed of the split, the networks and the intervals")] = 0,
    as_json: Json = False,
) -> None:
    from calibrant.report import html

    outputs.check((out, outputs.DEMO))
    found = [pipeline(name, recipe, out, seed, as_json) for name, recipe in TRAININGS.items()]
    first = found[0]
    written = {
        "calibration": files.write(out / "calibration.npz", files.read(first.run / "calibration.npz")),
        "test": files.write(out / "test.npz", first.test),
        "map": save(first.fitted, out / "map"),
        "calibrated": files.write(out / "calibrated.npz", first.after),
        "focal": files.write(out / "focal.npz", found[1].test),
        "smoothing": files.write(out / "smoothing.npz", found[2].test),
    }
    with step("comparing and writing the report", as_json):
        called = (f"{first.name}, as trained", f"{first.name}, recalibrated")  # the page holds three trainings
        comparison = compare(first.test, first.after, metrics=HEADLINE, seed=seed, names=called)
        written["report"] = html.write(
            out / "report.html",
            [html.Audit.of(t.test, t.audited, t.name) for t in found],
            after=html.Audit.of(first.after, first.again, called[1]),
            comparisons=[comparison],
            command=f"calibrant demo -o {out} --seed {seed}",
        )
    if as_json:
        names = {name: str(path) for name, path in written.items()}
        block_json(_record(found, comparison, names))
    else:
        _show(found, sentence(comparison).removeprefix(f"{called[1]}: "), out)


def pipeline(name: str, recipe: str, out: Path, seed: int, as_json: bool) -> Trained:
    """Train, audit, fit the automatic choice on the calibration split, and audit again."""
    from calibrant.training import How, read, train

    chosen = read(recipe).with_settings({**OVERTRAINED, "seed": seed, "data.seed": seed})
    run = out / "runs" / f"{recipe.split('/')[1]}-{chosen.key()[:8]}"
    with step(f"training on 150 digits with {name}", as_json):
        train(chosen, run, How(device="cpu", every=50, quiet=True))
    test = files.read(run / "test.npz")
    with step(
        f"auditing it on {test.n:,} other digits, recalibrating by the automatic choice, auditing again", as_json
    ):
        audited = evaluate(test, seed=seed)
        fitted = fit("auto", files.read(run / "calibration.npz"), seed=seed)
        after = fitted.predictions(test)
        return Trained(name, run, test, audited, fitted, after, evaluate(after, seed=seed))


def _record(found: Sequence[Trained], comparison: Comparison, written: dict[str, str]) -> dict[str, Any]:
    first = found[0]
    table = [
        {"training": t.name, "calibrator": method, **{m: report[m].value for m in HEADLINE}}
        for t in found
        for method, report in ((None, t.audited), (t.fitted.method, t.again))
    ]
    fitted = {"method": first.fitted.method, "parameters": first.fitted.summary(), "guard": first.fitted.record.guard}
    return {
        "schema": SCHEMA,
        "files": written,
        "fit": fitted,
        "before": first.audited.to_dict(),
        "after": first.again.to_dict(),
        "comparison": comparison.to_dict(),
        "table": table,
    }


def _show(found: Sequence[Trained], difference: str, out: Path) -> None:
    from rich.table import Table

    from calibrant.cli.layout import Console
    from calibrant.report import terminal, verdict

    console = Console(highlight=False)
    console.print("", terminal.joint_table([row for t in found for row in t.rows()]), sep="\n")
    first = found[0]
    sentences = Table.grid(padding=(0, 2))
    for t in found:
        sentences.add_row(f"[bold]{t.name}[/bold]", verdict.verdict(replace(t.audited, file=t.name)))
    sentences.add_row(f"[bold]{first.name}, recalibrated[/bold]", difference)
    console.print("", sentences, sep="\n")
    console.print()
    console.say(f"the report, for a browser:  {out / 'report.html'}")
    console.say(f"the same by hand:           calibrant audit {out / 'test.npz'}")


@contextmanager
def step(what: str, to_stderr: bool = False) -> Iterator[None]:
    """Print what is being done, and then how long it took."""
    from calibrant.cli.layout import Console

    log = Console(stderr=to_stderr, highlight=False)
    start = time.perf_counter()
    with log.status(what):
        yield
    log.print(f"· {what} [dim]({time.perf_counter() - start:.1f} s)[/dim]")
