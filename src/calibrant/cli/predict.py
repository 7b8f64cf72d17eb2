"""`calibrant predict MODEL --data NAME -o PREDS`: what a model says about a part of the data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from calibrant.errors import InputError


def predict(
    model: Annotated[str, typer.Argument(help="RUN/, timm:NAME, torchvision:NAME or package.module:factory[@WEIGHTS]")],
    out: Annotated[Path, typer.Option("-o", "--out", help="file of predictions: .npz, .safetensors, .parquet, .csv")],
    data: Annotated[
        str | None, typer.Option(help="a data set (`calibrant list datasets`); a run knows its own")
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation, calibration or test")] = "test",
    data_root: Annotated[Path | None, typer.Option(help="where the data lies; else CALIBRANT_DATA")] = None,
    mean: Annotated[
        str | None, typer.Option(help="per channel, as 0.5,0.5,0.5; else the model's, else the data's")
    ] = None,
    std: Annotated[str | None, typer.Option(help="per channel; as --mean")] = None,
    batch: Annotated[int, typer.Option(min=1)] = 1000,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    seed: Annotated[int | None, typer.Option(help="of the split; a run knows its own")] = None,
) -> None:
    """What a model says about a part of the data."""
    import torch

    from calibrant import files
    from calibrant.data import Batches, load
    from calibrant.ensembles.reference import resolve
    from calibrant.ensembles.single import predict as run
    from calibrant.functional.border import as_split

    found = resolve(model)
    name = data or found.data
    if name is None:
        raise InputError("--data is missing: this model does not say what it was trained on")
    own = name == found.data
    loaded = load(
        name,
        root=data_root,
        seed=seed if seed is not None else found.data_seed if own else 0,
        sizes=found.sizes if own else None,
    )
    where = torch.device(
        "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device
    )
    batches = Batches(
        loaded[as_split(split)],
        batch,
        device=where,
        mean=_numbers(mean, "--mean") or found.mean or loaded.mean,
        std=_numbers(std, "--std") or found.std or loaded.std,
    )
    members = list(found.members)
    p = run(
        members if len(members) > 1 else members[0],
        batches,
        device=where,
        split=split,
        classes=loaded.classes if found.classes is None or len(found.classes) == loaded.k else found.classes,
        progress=sys.stderr.isatty(),
    )
    files.write(out, p)
    typer.echo(f"{out}: {p.n} items, {p.k} classes, {p.members} member(s), split {p.split}")


def _numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text!r} is not numbers separated by commas") from None
