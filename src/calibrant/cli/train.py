"""`calibrant train RECIPE -o RUN/`: train a recipe, resumable at any time, and write predictions to audit and fit."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import block, block_json, say
from calibrant.cli.options import DataRoot, Device, Json
from calibrant.files.locks import first_process

if TYPE_CHECKING:
    from calibrant.cli.train_levels import LevelsAudit
    from calibrant.training.run import How


@dataclass(frozen=True)
class Execution:
    """How a recipe is run and what is kept of the run; the recipe itself says what is trained."""

    data_root: DataRoot = None
    device: Device = "auto"
    devices: Annotated[int, typer.Option(help="number of processes that share each batch (DDP)", min=1)] = 1
    checkpoint_every: Annotated[int, typer.Option(help="epochs between checkpoints", min=1)] = 1
    keep_epochs: Annotated[
        bool,
        typer.Option(help="keep predictions of every epoch: all of validation, the largest logits of train"),
    ] = False
    keep_weights: Annotated[
        int, typer.Option(help="keep the weights of the last N epochs, for SWA and SWAG", min=0)
    ] = 0
    tensorboard: Annotated[bool, typer.Option(help="write TensorBoard events to RUN/tensorboard")] = False
    levels: Annotated[
        Path | None,
        typer.Option(help="AR-AdaLS: a run, or its robustness folder; by default a vanilla run is trained first"),
    ] = None

    def how(self, words: Sequence[str], *, quiet: bool) -> How:
        """The same for `calibrant.training`; code of the user's runs only if `words` name it."""
        from calibrant.training import How
        from calibrant.training.networks import is_own
        from calibrant.training.settings import setting, typed

        given = dict(map(setting, words))
        network = typed(given, "network")
        name = network.get("name") if isinstance(network, dict) else network
        return How(
            self.device,
            self.devices,
            self.data_root,
            self.checkpoint_every,
            self.keep_epochs,
            self.keep_weights,
            self.tensorboard,
            quiet=quiet,
            levels=self.levels,
            factory=typed(given, "data.name"),
            network=name if isinstance(name, str) and is_own(name) else None,
        )


def train(
    recipe: Annotated[str, typer.Argument(help="a name (`calibrant list recipes`), a TOML file, or a run to repeat")],
    out: Annotated[Path, typer.Option("-o", "--out", help="folder of the run; an unfinished run is resumed")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a setting of the recipe, e.g. optimiser.lr=0.1; repeatable")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="the recipe's data.name: a data set, a folder of images or my.module:factory")
    ] = None,
    as_json: Json = False,
    *,
    execution: Execution,
) -> None:
    from calibrant.cli.train_levels import audit_levels
    from calibrant.training import read, select
    from calibrant.training import train as run

    words = [*(settings or ()), *(() if data is None else (f"data.name={json.dumps(data)}",))]
    chosen, how = read(recipe, words), execution.how(words, quiet=as_json and not sys.stderr.isatty())
    if chosen.selection is None:
        result: dict[str, Any] = run(chosen, out, how)
    else:
        result = select(chosen, out, how, say=lambda text: say(text, err=True))
    if not first_process():
        return
    audited = audit_levels(out, chosen, how)
    if as_json:
        block_json(result if audited is None else {**result, "levels": audited.record})
    else:
        _show(result, audited, out)


def _show(result: dict[str, Any], audited: LevelsAudit | None, out: Path) -> None:
    if "chosen" in result:  # a search over settings
        block(choice(result))
        result = result["chosen"]
    block(table(result["metrics"]))
    if audited is not None:
        audited.show()
    if (test := out / "test.npz").is_file():
        say()
        say(f"next: calibrant audit {shlex.quote(str(test))}")


def table(metrics: dict[str, dict[str, Any]]) -> str:
    """One row per split with the main metrics; shares in percent, as in every other table."""
    from calibrant.display import aligned, headline
    from calibrant.report import numbers

    names = headline(next(iter(metrics.values())))
    rows = [[split, str(row["n"]), *(numbers.value(n, row[n]) for n in names)] for split, row in metrics.items()]
    return "\n".join(aligned([["split", "n", *names], *rows], numbers=True))


def choice(record: dict[str, Any]) -> str:
    """Which settings a search chose, by which criterion. A choice made on the test split is called an oracle choice."""

    def words(point: dict[str, Any]) -> str:
        return ", ".join(f"{k} = {v}" for k, v in point["settings"].items())

    by = f"by {record['criterion']} on {record['split']}"
    if record["oracle"]:
        return f"oracle choice, {by}: {words(record['chosen'])} (not achievable without the test labels)\n"
    lines = [f"chosen {by}: {words(record['chosen'])}"]
    if record["oracle_choice"]["settings"] != record["chosen"]["settings"]:
        lines.append(f"oracle choice, on test: {words(record['oracle_choice'])}")
    return "\n".join(lines) + "\n"
