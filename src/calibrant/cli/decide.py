"""`calibrant decide CALIBRATION --accuracy 0.95 -o RULE/`: choose a rule that keeps its promise on new items."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from calibrant import files
from calibrant.cli.console import block_json, say
from calibrant.cli.options import Json
from calibrant.cli.reading import Reading
from calibrant.decisions.choose import decide as choose
from calibrant.errors import FileError, InputError
from calibrant.files import outputs
from calibrant.posthoc import load
from calibrant.types import SCHEMA, Predictions


@dataclass(frozen=True)
class Promise:
    """What the rule promises: the arguments of `calibrant.decide`."""

    accuracy: Annotated[float | None, typer.Option(help="accept answers that are right at least this often")] = None
    accept: Annotated[float | None, typer.Option(help="accept this share of the items, the surest ones")] = None
    threshold: Annotated[
        float | None, typer.Option(help="accept answers with this confidence, chosen on other items")
    ] = None
    risk: Annotated[float | None, typer.Option(help="accept answers with at most this mean loss")] = None
    loss: Annotated[Path | None, typer.Option(help="--risk: a .csv of K × K losses, one row per true class")] = None
    set_coverage: Annotated[float | None, typer.Option(help="give sets of classes that hold the truth this often")] = (
        None
    )
    method: Annotated[str | None, typer.Option(help="sets: lac (default), aps, raps or topk")] = None
    randomised: Annotated[bool, typer.Option(help="sets: break ties at random, which makes them smaller")] = False
    penalty: Annotated[
        float | None, typer.Option(help="raps: penalty of each class beyond --k-reg (default: 0.01)")
    ] = None
    k_reg: Annotated[int | None, typer.Option(help="raps: number of classes without penalty (default: 5)")] = None
    costs: Annotated[
        Path | None,
        typer.Option(help="a .csv with one row per true class and one column per action; an action may be 'abstain'"),
    ] = None
    guarantee: Annotated[
        float | None, typer.Option(help="probability that the promise is kept (default: 0.95; sets keep it on average)")
    ] = None
    by: Annotated[str | None, typer.Option(help="make the promise for each 'class' or 'group'")] = None

    def read(self, p: Predictions) -> dict[str, Any]:
        """The arguments, with the tables read from their files."""
        actions, costs = (None, None) if self.costs is None else table(self.costs, p)
        loss = None if self.loss is None else table(self.loss, p, square=True)[1]
        return {**vars(self), "actions": actions, "costs": costs, "loss": loss}


def decide(
    preds: Annotated[
        Path, typer.Argument(help="predictions on items that neither the model nor the map was fitted on")
    ],
    promise: Promise,
    reading: Reading,
    map_folder: Annotated[Path | None, typer.Option("--map", help="a fitted map to apply first")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="folder for the rule")] = None,
    allow_reuse: Annotated[bool, typer.Option(help="allow a test split, or items that the map was fitted on")] = False,
    as_json: Json = False,
) -> None:
    outputs.check((out, outputs.RULE), inputs=[preds, reading.labels, map_folder, promise.loss, promise.costs])
    fitted = None if map_folder is None else load(map_folder)
    p = reading.read(preds)
    rule = choose(p, **promise.read(p), map=fitted, allow_reuse=allow_reuse)
    if out is not None:
        rule.save(out)
    if as_json:
        block_json({"schema": SCHEMA, **rule.to_dict(), "out": None if out is None else str(out)})
        return
    say(rule.sentence)
    if rule.record.reuse:
        say("chosen with --allow-reuse, on a test split or on what the map was fitted on: the promise may not hold")
    say(f"written to {out}" if out is not None else "not written: pass a folder with -o")


def table(path: Path, p: Predictions, square: bool = False) -> tuple[list[str] | None, np.ndarray[Any, Any]]:
    """The (names of the columns, numbers) of a CSV. A header and a first column of class names are optional.

    Named rows are sorted into the order of the classes, and so are the columns of a `square` table.
    """
    rows = _rows(path)
    header = None if all(map(_numeric, rows[0][1])) else [cell.strip() for cell in rows.pop(0)[1]]
    titled = header is not None and header[0].lower() in ("", "class", "label")
    named = bool(rows) and (titled or not any(_numeric(cells[0]) for _, cells in rows))
    numbers = []
    for line, cells in rows:
        first = len(rows[0][1])
        wrong = next((cell for cell in cells[named:] if not _numeric(cell)), None)
        if wrong is not None or len(cells) != first:
            why = f"has {len(cells)} cells, the first has {first}" if wrong is None else f"has {wrong!r}"
            raise FileError(f"{path}: line {line} {why}; give one number for each column")
        numbers.append([float(cell) for cell in cells[named:]])
    if not numbers or not numbers[0]:
        raise FileError(f"{path}: no numbers; give one row for each class")
    if header is not None and len(header) == len(numbers[0]) + 1 and named:
        header = header[1:]
    if header is not None and len(header) != len(numbers[0]):
        raise InputError(f"{path}: {len(header)} names in the header but {len(numbers[0])} numbers in a row")
    if p.k is not None and len(numbers) != p.k:
        raise InputError(f"{path}: {len(numbers)} rows; the predictions have {p.k} classes")
    found, known = np.array(numbers), p.classes
    if named:
        names = [cells[0].strip() for _, cells in rows]
        order = _order(path, "rows", names, known)
        found, known = found[order], tuple(names[i] for i in order)
    return header, found[:, _order(path, "columns", header, known)] if square and header is not None else found


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """The (number of the line, cells) of every row that is not empty."""
    try:
        with files.existing(path).open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path}: not a CSV file in UTF-8 ({error})") from error
    if not rows:
        raise FileError(f"{path}: empty; give one row of numbers for each class")
    return rows


def _order(path: Path, what: str, names: list[str], classes: Sequence[object] | None) -> list[int]:
    """The position of each class among the names. Classes without names are called 0 … K−1, or are in order."""
    known = [str(i) for i in range(len(names))] if classes is None else [str(c) for c in classes]
    if sorted(names) == sorted(known):
        return [names.index(c) for c in known]
    if classes is None and not any(map(_numeric, names)):
        return list(range(len(names)))
    raise InputError(
        f"{path}: the {what} are named {', '.join(names[:4])}{' …' * (len(names) > 4)}, and the classes are "
        f"{', '.join(known[:4])}{' …' * (len(known) > 4)}; name each class once"
    )


def _numeric(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False
