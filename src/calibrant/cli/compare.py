"""`calibrant compare A B …`: paired tests between predictors on the same items, and a verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import calibrant.provenance as provenance
from calibrant.cli.console import block_json
from calibrant.cli.options import Bins, BootstrapSeed, Everything, Json, Metrics, metric_names
from calibrant.cli.reading import Reading
from calibrant.display import HEADLINE
from calibrant.errors import InputError
from calibrant.metrics.compare import CAUTION, Comparison, compare_all
from calibrant.report.comparison import sentence


def compare(
    preds: Annotated[
        list[Path],
        typer.Argument(help="two or more files of predictions; a .npy of scores is followed by a .npy of labels"),
    ],
    as_json: Json = False,
    metrics: Metrics = None,
    everything: Everything = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="compare every two files, not only each with the first")
    ] = False,
    bins: Bins = 15,
    seed: BootstrapSeed = 0,
    replicates: Annotated[int, typer.Option(help="number of bootstrap resamples")] = 1000,
    *,
    reading: Reading,
) -> None:
    names = metric_names(metrics)
    sets = [how.read(path) for path, how in reading.each(preds)]
    if len(sets) < 2:
        raise InputError("compare needs two or more files of predictions; one was given")
    found = compare_all(sets, pairs=pairs, metrics=names, bins=bins, seed=seed, replicates=replicates)
    if as_json:
        block_json([c.to_dict() | {"made": provenance.made()} for c in found])
    else:
        _show(found, None if everything or names is not None else HEADLINE)


def _show(found: list[Comparison], shown: Sequence[str] | None) -> None:
    from calibrant.cli.layout import Console
    from calibrant.report import terminal

    console = Console()
    for each in found:
        console.print(terminal.compare_table(each, shown))
        console.say(sentence(each, shown))
        if shown is not None and len(shown) < len(each.rows):
            hidden = f"p is corrected for all {len(each.rows)} metrics; {len(each.rows) - len(shown)} more: --all"
            console.say(hidden, "dim")
        console.print()
    console.print(CAUTION, style="dim", highlight=False)
