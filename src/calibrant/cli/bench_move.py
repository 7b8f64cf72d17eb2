"""`calibrant bench merge|pack|unpack`: move cells, logits and unfinished trainings between machines."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.bench_show import Results
from calibrant.cli.console import block_json, say
from calibrant.cli.options import Json
from calibrant.errors import FailedError
from calibrant.types import SCHEMA


def merge(
    a: Annotated[str, typer.Argument(metavar="FROM", help="a store of results: a folder, or a URL that fsspec knows")],
    b: Annotated[str, typer.Argument(metavar="INTO", help="the store to copy into")],
    as_json: Json = False,
) -> None:
    """Copy the cells and logits of one store into another."""
    from calibrant.bench import parcel

    with parcel.at(a) as source, parcel.at(b, write=True) as target:
        found = parcel.merge(source, target)
        damaged = [w.replace(f"{source.root}", a, 1).replace(f"{target.root}", b, 1) for w in found.damaged]
        _merged(replace(found, damaged=tuple(damaged)), b, as_json)


def pack(
    out: Annotated[Path, typer.Option("-o", "--out", help="folder of the parcels")],
    results: Results = Path("results"),
    runs: Annotated[
        Path | None, typer.Option(help="also pack the trainings of this folder that are not measured yet")
    ] = None,
    max_files: Annotated[int, typer.Option(help="at most this many parcels", min=1)] = 8,
    max_mib: Annotated[float, typer.Option(help="at most this many MiB each", min=0.01)] = 16.0,
    as_json: Json = False,
) -> None:
    """Pack cells, logits and trainings that are not measured yet into a few small files."""
    from calibrant.bench import parcel
    from calibrant.bench.store import Store

    made = parcel.pack(Store(results), out, max_files, max_mib, runs)
    if as_json:
        block_json({"schema": SCHEMA, "files": [str(p) for p in made.files], "left": list(made.left)})
        return
    for path in made.files:
        say(f"{path}: {path.stat().st_size / parcel.MIB:.1f} MiB")
    if made.left:
        say(f"no room for {len(made.left)}: {', '.join(made.left[:5])}{', …' if len(made.left) > 5 else ''}")


def unpack(
    folder: Annotated[Path, typer.Argument(help="folder of the parcels")],
    results: Results = Path("results"),
    runs: Annotated[Path, typer.Option(help="folder of trainings, for those not measured yet")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Put the cells and logits of parcels into a store, and trainings where `bench run` resumes them."""
    from calibrant.bench import parcel
    from calibrant.bench.store import Store

    _merged(parcel.unpack(folder, Store(results), runs), str(results), as_json)


def _merged(found: Any, into: str, as_json: bool) -> None:
    more = f", {found.trainings} training{'s' * (found.trainings > 1)} to resume" if found.trainings else ""
    if as_json:
        block_json({"schema": SCHEMA, **asdict(found)})
    else:
        say(f"{into}: {found.cells} new cells, {found.known} known ones, {found.logits} new files of logits{more}")
    for words in found.damaged:
        say(words, err=True)
    if found.damaged:
        raise FailedError(
            f"{len(found.damaged)} damaged cell{'s' * (len(found.damaged) > 1)} left out (see above), all others were "
            "copied; delete such a file where it comes from, and measure its cell again"
        )
