"""`calibrant predict MODEL --data NAME -o PREDS [--ensemble pep]`: what a model says about a part of the data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.ensembles.ensemble import Ensemble
    from calibrant.types import Predictions


def predict(
    model: Annotated[
        list[str], typer.Argument(help="RUN/, timm:NAME, torchvision:NAME or package.module:factory[@WEIGHTS]")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="file of predictions: .npz, .safetensors, .parquet, .csv")],
    data: Annotated[
        str | None, typer.Option(help="a data set (`calibrant list datasets`); a run knows its own")
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation, calibration or test")] = "test",
    ensemble: Annotated[str | None, typer.Option(help="pep, dropout, deep, swa, swag or snapshot")] = None,
    members: Annotated[int | None, typer.Option(min=1, help="how many; by default the method's own number")] = None,
    sigma: Annotated[float | None, typer.Option(help="PEP's σ; by default it is fitted")] = None,
    fit_on: Annotated[str, typer.Option(help="the split that σ is fitted on")] = "calibration",
    p: Annotated[float | None, typer.Option("--p", help="MC dropout: use this rate everywhere")] = None,
    keep_members: Annotated[bool, typer.Option(help="write [M, N, K] instead of the pooled prediction")] = False,
    save: Annotated[Path | None, typer.Option(help="PEP: write σ and the seeds to this folder")] = None,
    data_root: Annotated[Path | None, typer.Option(help="where the data lies; else CALIBRANT_DATA")] = None,
    mean: Annotated[
        str | None, typer.Option(help="per channel, as 0.5,0.5,0.5; else the model's, else the data's")
    ] = None,
    std: Annotated[str | None, typer.Option(help="per channel; as --mean")] = None,
    batch: Annotated[int, typer.Option(min=1)] = 1000,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    seed: Annotated[int | None, typer.Option(help="of the split and the ensemble; a run knows its own split")] = None,
    json_: Annotated[bool, typer.Option("--json", help="machine-readable on stdout")] = False,
) -> None:
    """What a model says about a part of the data, alone or as an ensemble."""
    import torch

    from calibrant import files
    from calibrant.data import Batches, load
    from calibrant.ensembles.reference import resolve
    from calibrant.functional.border import as_split

    found = [resolve(each) for each in model]
    first = found[0]
    name = data or first.data
    if name is None:
        raise InputError("--data is missing: this model does not say what it was trained on")
    own = name == first.data
    loaded = load(
        name,
        root=data_root,
        seed=seed if seed is not None else first.data_seed if own else 0,
        sizes=first.sizes if own else None,
    )
    where = torch.device(
        "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device
    )

    def batches(part: str) -> Batches:
        return Batches(
            loaded[as_split(part)],
            batch,
            device=where,
            mean=_numbers(mean, "--mean") or first.mean or loaded.mean,
            std=_numbers(std, "--std") or first.std or loaded.std,
        )

    networks = [m.to(where) for reference in found for m in reference.members]
    classes = loaded.classes if first.classes is None or len(first.classes) == loaded.k else first.classes
    options: dict[str, Any] = {"device": where, "split": split, "classes": classes, "progress": sys.stderr.isatty()}
    made = None
    if ensemble is None:
        predicted = _alone(networks, batches(split), options)
    else:
        given = {"members": members, "sigma": sigma, "p": p, "seed": seed or 0}
        made = _assemble(ensemble, networks, first.name, given, batches, as_split(fit_on).value)
        predicted = made.predict(batches(split), keep_members=keep_members, **options)
    files.write(out, predicted)
    _say(predicted, out, made, save, as_json=json_)


def _alone(networks: Sequence[Any], batches: Iterable[Any], options: dict[str, Any]) -> Predictions:
    from calibrant.ensembles.single import predict as run

    return run(networks if len(networks) > 1 else networks[0], batches, **options)


def _assemble(
    name: str,
    networks: Sequence[Any],
    run: str,
    given: dict[str, Any],
    batches: Callable[[str], Iterable[Any]],
    fit_on: str,
) -> Ensemble:
    from calibrant.ensembles.assemble import Ingredients, assemble
    from calibrant.errors import SplitError
    from calibrant.train.kept import kept_weights

    if name == "pep" and fit_on == "test":
        raise SplitError("--fit-on test: σ must be chosen on data that is not the test split; use calibration")
    return assemble(
        name,
        Ingredients(
            networks,
            **given,
            held_out=lambda: batches(fit_on),
            checkpoints=lambda: kept_weights(run) if Path(run).is_dir() else [],
            training=lambda: (x for x, _, _ in batches("train")),
        ),
    )


def _say(predicted: Predictions, out: Path, made: Ensemble | None, save: Path | None, *, as_json: bool) -> None:
    from calibrant.ensembles.pep import PEP
    from calibrant.ensembles.storage import save as save_ensemble
    from calibrant.types import SCHEMA, jsonable

    said: dict[str, Any] = {"schema": SCHEMA, "file": str(out), "n": predicted.n, "k": predicted.k}
    said |= {"members": predicted.members, "split": str(predicted.split)}
    if made is not None:
        said |= {"ensemble": type(made).__name__.lower(), "size": made.size}
    if isinstance(made, PEP):
        said["pep"] = made.describe()
        if save is not None:
            said["saved"] = str(save_ensemble(made, save))
    elif save is not None:
        raise InputError("--save is for PEP: σ and seeds are what it consists of")
    if as_json:
        print(json.dumps(jsonable(said), ensure_ascii=False))
        return
    who = "" if made is None else f", {said['ensemble']} of {made.size}"
    typer.echo(f"{out}: {predicted.n} items, {predicted.k} classes{who}, split {predicted.split}")
    if isinstance(made, PEP):
        seen = made.certificate
        gain = f": NLL {seen.nll_at_zero:.4f} → {seen.nll:.4f} where it was fitted" if seen else ""
        typer.echo(f"σ = {made.sigma:.4g}{gain}")
        for note in seen.notes if seen else ():
            typer.echo(f"note: {note}")


def _numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text!r} is not numbers separated by commas") from None
