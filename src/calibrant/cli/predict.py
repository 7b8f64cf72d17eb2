"""`calibrant predict MODEL --data NAME -o PREDS [--ensemble pep]`: what a model says about a part of the data."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import block_json, say
from calibrant.cli.ensemble_options import Ensembling, Smoothing, kept
from calibrant.cli.model_data import Inputs, Setting, check_channels, inputs_of, opened_model
from calibrant.cli.options import ClassAxis, Device, Json, Models
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.ensembles.ensemble import Ensemble
    from calibrant.types import Predictions

SMALL_IMAGES = 1000 * 32 * 32
"""Pixels in a batch without --batch: a thousand small images, or a few large ones."""


def predict(
    *,
    model: Models,
    out: Annotated[Path, typer.Option("-o", "--out", help="file of predictions: .npz, .safetensors, .parquet, .csv")],
    data: Annotated[
        str | None,
        typer.Option(help="a data set (`calibrant list datasets`), FILE.npz or folder; by default the run's own"),
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation, calibration or test")] = "test",
    ensemble: Annotated[str | None, typer.Option(help="pep, dropout, deep, swa, swag, snapshot or temporal")] = None,
    ensembling: Ensembling,
    fit_on: Annotated[str | None, typer.Option(help="PEP: the split to fit σ on (default: calibration)")] = None,
    keep_members: Annotated[bool, typer.Option(help="write [M, N, K] instead of the pooled prediction")] = False,
    features: Annotated[
        bool,
        typer.Option("--features", help="also write the last linear layer's inputs, for confidnet and trust_score"),
    ] = False,
    smoothing: Smoothing,
    class_axis: ClassAxis = -1,
    ignore_index: Annotated[
        int | None, typer.Option(help="label maps: pixels with this label have no class (like -1)")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="PEP: write σ and the seeds to this folder")] = None,
    html: Annotated[
        Path | None, typer.Option(help="write an HTML report beside the network alone; PEP adds its σ curve")
    ] = None,
    inputs: Inputs,
    batch: Annotated[int | None, typer.Option(min=1, help="items per batch; by default 1000 small images")] = None,
    device: Device = "auto",
    seed: Annotated[int | None, typer.Option(help="seed of the ensemble and the split (runs keep theirs)")] = None,
    as_json: Json = False,
) -> None:
    """Run a model on a part of the data, alone or as an ensemble, and write its predictions."""
    from calibrant import files
    from calibrant.files import atomic, outputs

    given = ensembling.of(ensemble)
    fit_on = _possible(ensemble, save, html, keep_members, fit_on)
    outputs.check((out, outputs.FILE), (save, outputs.ENSEMBLE), (html, outputs.PAGE), inputs=[*model, data])
    stream = smoothing.wanted(ensemble)
    kept(keep_members, ensemble, stream)
    if features and (ensemble is not None or stream or len(model) > 1):
        raise InputError("--features needs a single network; drop it, or predict with one model")
    opened = opened_model(model, data, inputs, device, seed, maps=True, ignore_index=ignore_index)
    found, options = _fitting(opened, model, inputs, split, class_axis)
    networks, batches, maps = found.networks, found.batches(batch or _usual(found)), {k: options[k] for k in MAPS}
    made = None
    if ensemble is not None:
        made = assembled(ensemble, networks, found.first.name, {**given, "seed": seed or 0, **maps}, batches, fit_on)
    if stream:
        made = smoothing.of(made, networks)
    if made is None:
        predicted = _alone(networks, batches(split), {**options, "features": features})
    else:
        predicted = narrowed(made.predict(batches(split), keep_members=keep_members, **options), networks)
    files.write(out, predicted)
    if html is not None:
        from calibrant.cli.predict_report import page

        alone = None if made is None else _alone(networks[:1], batches(split), options)
        atomic.write_text(html, page(predicted, alone, made, lambda: batches(fit_on), out, maps))
    _say(predicted, out, made, save, html, inputs_of(found.data, found.mean, found.std), as_json=as_json)


MAPS = ("class_axis", "ignore_index")
"""How label maps are read."""


def _fitting(
    found: Setting, models: Sequence[str], inputs: Inputs, split: str, class_axis: int
) -> tuple[Setting, dict[str, Any]]:
    """The models and data, checked against each other, and how the models are run."""
    from calibrant.cli.answers import agree, known_classes, on_blank_items
    from calibrant.data.label_maps import IGNORED
    from calibrant.functional.inputs import as_split
    from calibrant.functional.model_output import both_classes

    part = found.data[as_split(split)]
    if part.items is None:  # the frames as they are, which a data set's own constants need not be
        found = replace(found, data=replace(found.data, shape=tuple(part.x.shape[1:])))
    check_channels(inputs.moments, found.data, part)
    known = known_classes(found.first, found.data, found.name, part.y)
    answers = on_blank_items(models, found.found, found.data, as_split(split), class_axis)
    agree({text: both_classes(z) for text, z in answers.items()}, found.name, known, part.y)
    options = {"device": found.device, "split": split, "classes": known, "progress": sys.stderr.isatty()}
    return found, {**options, "class_axis": class_axis, "ignore_index": IGNORED if part.y.ndim > 1 else None}


def _usual(found: Setting) -> int:
    return max(1, SMALL_IMAGES // max(math.prod(found.data.shape[1:]), 1024))


def narrowed(p: Predictions, networks: Iterable[Any]) -> Predictions:
    """Pooling sums in float64; what networks of float32 said is written in float32, as a network's own logits are.

    They are logarithms: float32 keeps a probability of 1 − 10⁻³⁰ or 10⁻³⁰⁰ apart from 1 and 0, and −∞ as it is.
    """
    import torch

    own = {w.dtype for network in networks for w in network.parameters()}
    if p.logits is None or p.logits.dtype != torch.float64 or torch.float64 in own:
        return p
    return replace(p, logits=p.logits.float())


def _possible(
    ensemble: str | None, save: Path | None, html: Path | None, keep_members: bool, fit_on: str | None
) -> str:
    """What cannot be, known before anything is loaded or written; else the split that σ is fitted on."""
    from calibrant.errors import SplitError
    from calibrant.functional.inputs import as_split

    held_out = as_split(fit_on or "calibration").value
    if fit_on is not None and ensemble != "pep":
        raise InputError("--fit-on is a setting of --ensemble pep; add that, or drop --fit-on")
    if save is not None and ensemble != "pep":
        raise InputError("--save is for PEP, which consists of σ and seeds; add --ensemble pep, or drop --save")
    if ensemble == "pep" and held_out == "test":
        raise SplitError("--fit-on test: σ must be chosen on data that is not the test split; use calibration")
    if html is not None and keep_members:
        raise InputError("--html is about the pooled prediction; drop --keep-members")
    return held_out


def _alone(networks: Sequence[Any], batches: Iterable[Any], options: dict[str, Any]) -> Predictions:
    from calibrant.ensembles.single import predict as run

    return run(networks if len(networks) > 1 else networks[0], batches, **options)


def assembled(
    name: str,
    networks: Sequence[Any],
    run: str,
    given: dict[str, Any],
    batches: Callable[[str], Iterable[Any]],
    fit_on: str,
) -> Ensemble:
    from calibrant.ensembles import assemble
    from calibrant.ensembles.ingredients import Ingredients
    from calibrant.training.epochs import kept_weights

    return assemble(
        name,
        Ingredients(
            networks,
            **given,
            held_out=lambda: batches(fit_on),
            checkpoints=lambda: list(kept_weights(run).values()) if Path(run).is_dir() else [],
            training=lambda: (x for x, _, _ in batches("train")),
            progress=sys.stderr.isatty(),
        ),
    )


def _say(
    predicted: Predictions,
    out: Path,
    made: Ensemble | None,
    save: Path | None,
    html: Path | None,
    inputs: str,
    *,
    as_json: bool,
) -> None:
    from calibrant.ensembles import ENSEMBLES
    from calibrant.ensembles.pep import PEP
    from calibrant.ensembles.storage import save as save_ensemble
    from calibrant.metrics.evaluate import evaluate
    from calibrant.report import numbers
    from calibrant.types import SCHEMA

    said: dict[str, Any] = {"schema": SCHEMA, "file": str(out), "n": predicted.n, "k": predicted.k}
    said |= {"members": predicted.members, "split": str(predicted.split)}
    said["inputs"] = inputs
    said["accuracy"] = evaluate(predicted, metrics=["accuracy"], intervals=False)["accuracy"].value
    if made is not None:
        name = next((key for key, kind in ENSEMBLES.items() if kind is type(made)), type(made).__name__.lower())
        said |= {"ensemble": name, "size": made.size}
    pep = getattr(made, "predictor", made)  # a stream holds the ensemble whose members take turns
    if isinstance(pep, PEP):
        said["pep"] = pep.describe()
        if save is not None:
            said["saved"] = str(save_ensemble(pep, save))
    if html is not None:
        said["html"] = str(html)
    if as_json:
        block_json(said, indent=None)
        return
    who = "" if made is None else f", {said['ensemble']} of {made.size}"
    if isinstance(pep, PEP):
        seen = pep.certificate
        gain = f", NLL where it was fitted {seen.nll_at_zero:.4f} → {seen.nll:.4f}" if seen else ""
        who += f" (σ = {pep.sigma:.4g} on {pep.share:.1%} of the weights, --where {pep.where}{gain})"
        for note in seen.notes if seen else ():
            say(f"note: {note}", err=True)
    accuracy = numbers.value("accuracy", said["accuracy"])
    say(f"inputs: {inputs}", err=True)
    say(f"{out}: {predicted.n:,} items of {predicted.split}, {predicted.k} classes{who}, accuracy {accuracy}")
    if html is not None:
        say(f"the report, for a browser: {html}")
