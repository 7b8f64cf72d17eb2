"""`calibrant train RECIPE -o RUN/`: train by a recipe, resumable at any moment; predictions ready for audit and fit."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.console import block, block_json, say
from calibrant.cli.options import DataRoot, Device, Json
from calibrant.files.locks import first_process


def train(
    recipe: Annotated[str, typer.Argument(help="a name (`calibrant list recipes`), a TOML file, or a run to repeat")],
    out: Annotated[Path, typer.Option("-o", "--out", help="folder of the run; an unfinished one is resumed")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a setting of the recipe, e.g. optimiser.lr=0.1; repeatable")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="the recipe's data.name: a data set, a folder of images or my.module:factory")
    ] = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    devices: Annotated[int, typer.Option(help="processes that share each batch (DDP)", min=1)] = 1,
    checkpoint_every: Annotated[int, typer.Option(help="epochs between checkpoints", min=1)] = 1,
    keep_epochs: Annotated[
        bool, typer.Option(help="keep predictions of every epoch: all of validation, the top logits of train")
    ] = False,
    keep_weights: Annotated[int, typer.Option(help="keep the weights of the last N epochs (SWA, SWAG)", min=0)] = 0,
    tensorboard: Annotated[bool, typer.Option(help="write TensorBoard's events under RUN/tensorboard")] = False,
    levels: Annotated[
        Path | None,
        typer.Option(help="AR-AdaLS: a run, or its folder of robustness; by default a vanilla run is trained"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train by a recipe: resumable, recorded, with predictions that audit, fit and compare take."""
    from calibrant.cli import train_levels
    from calibrant.training import How, read, select
    from calibrant.training import train as run
    from calibrant.training.settings import setting, typed

    words = [*(settings or ()), *(() if data is None else (f"data.name={json.dumps(data)}",))]
    chosen, set_here = read(recipe, words), dict(map(setting, words))
    how = How(
        device,
        devices,
        data_root,
        checkpoint_every,
        keep_epochs,
        keep_weights,
        tensorboard,
        quiet=as_json and not sys.stderr.isatty(),
        levels=levels,
        factory=typed(set_here, "data.name"),
        network=_typed_network(set_here),
    )
    result: dict[str, Any]
    if chosen.selection is None:
        result = run(chosen, out, how)
    else:
        result = select(chosen, out, how, say=lambda text: say(text, err=True))
    if not first_process():
        return
    both = train_levels.audited(out, chosen, how) if train_levels.wanted(chosen) else None
    if both is not None:
        result = {**result, "levels": both.record}
    if as_json:
        block_json(result)
        return
    if chosen.selection is not None:
        block(choice(result))
        result = {**result, "metrics": result["chosen"]["metrics"]}
    block(table(result["metrics"]))
    if both is not None:
        both.show()
    if (judged := out / "test.npz").is_file():
        say()
        say(f"next: calibrant audit {shlex.quote(str(judged))}")


def _typed_network(said: dict[str, Any]) -> str | None:
    """The network's name, if it is code of the user's that stands on the command line."""
    from calibrant.training.networks import is_own
    from calibrant.training.settings import typed

    network = typed(said, "network")
    name = network.get("name") if isinstance(network, dict) else network
    return name if isinstance(name, str) and is_own(name) else None


def table(metrics: dict[str, dict[str, Any]]) -> str:
    """Splits as rows, the six main metrics as columns, shares in percent as in every other table."""
    from calibrant.display import aligned, headline
    from calibrant.report import numbers

    names = headline(next(iter(metrics.values())))
    rows = [[split, str(row["n"]), *(numbers.value(n, row[n]) for n in names)] for split, row in metrics.items()]
    return "\n".join(aligned([["split", "n", *names], *rows], numbers=True))


def choice(record: dict[str, Any]) -> str:
    """What was chosen on what; a choice made on test is an oracle's and says so."""

    def words(point: dict[str, Any]) -> str:
        return ", ".join(f"{k} = {v}" for k, v in point["settings"].items())

    by = f"by {record['criterion']} on {record['split']}"
    if record["oracle"]:
        return f"oracle choice, {by}: {words(record['chosen'])} (not achievable without the test labels)\n"
    lines = [f"chosen {by}: {words(record['chosen'])}"]
    if record["oracle_choice"]["settings"] != record["chosen"]["settings"]:
        lines.append(f"oracle choice, on test: {words(record['oracle_choice'])}")
    return "\n".join(lines) + "\n"
