"""`calibrant predict MODEL -o PREDS [--ensemble pep]`: run a model on a split of the data and write its predictions."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import block_json, say
from calibrant.cli.ensemble_options import Ensembling, Smoothing
from calibrant.cli.model_data import Inputs, Setting, check_channels, inputs_of, load_setting
from calibrant.cli.options import ClassAxis, Device, Json, Models
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.ensembles.ensemble import Ensemble
    from calibrant.ensembles.pep import PEP
    from calibrant.ensembles.sigma import SigmaPoint
    from calibrant.types import Predictions

SMALL_IMAGES = 1000 * 32 * 32
"""Pixels of a batch without --batch: a thousand small images, or a few large ones."""
SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
"""Points of the σ curve besides those of the search, as multiples of σ*."""


@dataclass(frozen=True)
class Extras:
    """Options that need a certain predictor: an ensemble, PEP, one network, or a pooled prediction."""

    fit_on: Annotated[str | None, typer.Option(help="PEP: the split to fit σ on (default: calibration)")] = None
    keep_members: Annotated[bool, typer.Option(help="write [M, N, K], one prediction per member, not pooled")] = False
    features: Annotated[
        bool,
        typer.Option("--features", help="also write the last linear layer's inputs, for confidnet and trust_score"),
    ] = False
    save: Annotated[Path | None, typer.Option(help="PEP: write σ and the seeds to this folder")] = None
    html: Annotated[
        Path | None,
        typer.Option(
            help="write an HTML report to this file: an ensemble beside the network alone, with PEP's σ curve"
        ),
    ] = None

    @property
    def held_out(self) -> str:
        """The split that σ is fitted on."""
        from calibrant.functional.inputs import as_split

        return as_split(self.fit_on or "calibration").value

    def check(self, ensemble: str | None, stream: bool, networks: int) -> None:
        """Refuse an option that this predictor cannot have, before anything is loaded or written."""
        from calibrant.errors import SplitError

        if ensemble == "pep" and self.held_out == "test":
            raise SplitError("--fit-on test: σ must be chosen on data that is not the test split; use calibration")
        if self.html is not None and self.keep_members:
            raise InputError("--html is about the pooled prediction; drop --keep-members")
        if self.keep_members and stream:
            raise InputError("--keep-members: a stream has one prediction per frame, no members; drop --keep-members")
        if self.keep_members and ensemble is None:
            raise InputError(
                "--keep-members is a setting of --ensemble; add that, or drop --keep-members "
                "(several networks without an ensemble are always written member by member)"
            )
        if self.features and (ensemble is not None or stream or networks > 1):
            raise InputError("--features needs a single network; drop it, or predict with one model")


def predict(
    *,
    model: Models,
    out: Annotated[Path, typer.Option("-o", "--out", help="file of predictions: .npz, .safetensors, .parquet, .csv")],
    split: Annotated[str, typer.Option(help="train, validation, calibration or test")] = "test",
    ensembling: Ensembling,
    extras: Extras,
    smoothing: Smoothing,
    class_axis: ClassAxis = -1,
    ignore_index: Annotated[
        int | None, typer.Option(help="label maps: pixels with this label have no class (like -1)")
    ] = None,
    inputs: Inputs,
    batch: Annotated[int | None, typer.Option(min=1, help="items per batch; by default 1000 small images")] = None,
    device: Device = "auto",
    seed: Annotated[int | None, typer.Option(help="seed of the ensemble and the split (runs keep theirs)")] = None,
    as_json: Json = False,
) -> None:
    from calibrant import files
    from calibrant.files import atomic, outputs

    ensembling.check(fit_on=extras.fit_on, save=extras.save)
    stream = smoothing.wanted(ensembling.ensemble)
    extras.check(ensembling.ensemble, stream, len(model))
    outputs.check(
        (out, outputs.FILE),
        (extras.save, outputs.ENSEMBLE),
        (extras.html, outputs.PAGE),
        inputs=[*model, inputs.data],
    )
    found = load_setting(model, inputs, device, seed, maps=True, ignore_index=ignore_index)
    found, running = _checked(found, model, inputs, split, class_axis)
    networks, batches = found.networks, found.batches(batch or _batch_size(found))
    label_maps = {name: running[name] for name in ("class_axis", "ignore_index")}
    made = ensembling.assemble(found, batches, fit_on=extras.held_out, seed=seed or 0, **label_maps)
    if stream:
        made = smoothing.wrap(made, networks)
    if made is None:
        predicted = _alone(networks, batches(split), {**running, "features": extras.features})
    else:
        predicted = narrowed(made.predict(batches(split), keep_members=extras.keep_members, **running), networks)
    files.write(out, predicted)
    if extras.save is not None:
        _pep(made).save(extras.save)
    if extras.html is not None:
        alone = None if made is None else _alone(networks[:1], batches(split), running)
        text = _page(predicted, alone, made, lambda: batches(extras.held_out), out, label_maps)
        atomic.write_text(extras.html, text)
    record = _record(predicted, made, out, extras) | {"inputs": inputs_of(found.data, found.mean, found.std)}
    if as_json:
        block_json(record, indent=None)
    else:
        _show(record, predicted, made)


def _checked(
    found: Setting, models: Sequence[str], inputs: Inputs, split: str, class_axis: int
) -> tuple[Setting, dict[str, Any]]:
    """The models and data, checked against each other, and the options that the models are run with."""
    from calibrant.cli.model_check import blank_outputs, check_outputs, known_classes
    from calibrant.data.label_maps import IGNORED
    from calibrant.functional.inputs import as_split
    from calibrant.functional.model_output import both_classes

    part = found.data[as_split(split)]
    if part.items is None:  # items may have another shape than the data set states
        found = replace(found, data=replace(found.data, shape=tuple(part.x.shape[1:])))
    check_channels(inputs.moments, found.data, part)
    known = known_classes(found.first, found.data, found.name, part.y)
    blank = blank_outputs(models, found.found, found.data, as_split(split), class_axis)
    check_outputs({text: both_classes(z) for text, z in blank.items()}, found.name, known, part.y)
    return found, {
        "device": found.device,
        "split": split,
        "classes": known,
        "progress": sys.stderr.isatty(),
        "class_axis": class_axis,
        "ignore_index": IGNORED if part.y.ndim > 1 else None,
    }


def _batch_size(found: Setting) -> int:
    return max(1, SMALL_IMAGES // max(math.prod(found.data.shape[1:]), 1024))


def narrowed(p: Predictions, networks: Iterable[Any]) -> Predictions:
    """Predictions in float32, as the networks' own logits are, although pooling sums in float64.

    Nothing is lost: logits are logarithms, so float32 tells a probability of 1 − 10⁻³⁰ or 10⁻³⁰⁰ from 1 and 0.
    """
    import torch

    own = {w.dtype for network in networks for w in network.parameters()}
    if p.logits is None or p.logits.dtype != torch.float64 or torch.float64 in own:
        return p
    return replace(p, logits=p.logits.float())


def _alone(networks: Sequence[Any], batches: Iterable[Any], options: dict[str, Any]) -> Predictions:
    from calibrant.ensembles.prediction import predict as run

    return run(networks if len(networks) > 1 else networks[0], batches, **options)


def _page(
    predicted: Predictions,
    alone: Predictions | None,
    made: Ensemble | None,
    held_out: Callable[[], Iterable[Any]],
    out: Path,
    maps: Mapping[str, Any],
) -> str:
    """The HTML of the report: the ensemble beside the network alone, and PEP's σ curve.

    `alone` are the network's predictions on the same items. `held_out` yields the items that σ was fitted on; `maps`
    says how their label maps are read.
    """
    import calibrant.provenance as provenance
    from calibrant.ensembles.pep import PEP
    from calibrant.metrics.compare import compare
    from calibrant.metrics.evaluate import evaluate
    from calibrant.report import html
    from calibrant.report.sigma_panel import sigma_panel

    name = f"{out.stem} ({type(made).__name__} of {made.size})" if made is not None else out.stem
    sets = [] if alone is None else [replace(alone, source="the network alone")]
    sets.append(replace(predicted, source=name))
    audits = [html.Audit.of(p, evaluate(p), p.source) for p in sets]
    comparisons = [compare(sets[0], sets[1])] if alone is not None else []
    panels = [sigma_panel(made, _sigma_curve(made, held_out(), maps))] if isinstance(made, PEP) else []
    return html.render(audits, command=provenance.command(), comparisons=comparisons, panels=panels)


def _sigma_curve(pep: PEP, held_out: Iterable[Any], maps: Mapping[str, Any]) -> tuple[SigmaPoint, ...]:
    """The NLL at every σ that the search tried and at a few more, on the items that σ was fitted on."""
    from calibrant.ensembles.sigma import sigma_curve

    fitted = pep.certificate
    members = pep.size if fitted is None else fitted.members
    curve = sigma_curve(pep.at(0.0, members), held_out, **maps)
    curve.seen |= {point.sigma: point for point in fitted.curve} if fitted is not None else {}
    return curve.points([0.0, *(share * pep.sigma for share in SHARES)])


def _record(predicted: Predictions, made: Ensemble | None, out: Path, extras: Extras) -> dict[str, Any]:
    """What `--json` prints."""
    from calibrant.ensembles import ENSEMBLES
    from calibrant.metrics.evaluate import evaluate
    from calibrant.types import SCHEMA

    record: dict[str, Any] = {"schema": SCHEMA, "file": str(out), "n": predicted.n, "k": predicted.k}
    record |= {"members": predicted.members, "split": str(predicted.split)}
    record["accuracy"] = evaluate(predicted, metrics=["accuracy"], intervals=False)["accuracy"].value
    if made is not None:
        name = next((key for key, kind in ENSEMBLES.items() if kind is type(made)), type(made).__name__.lower())
        record |= {"ensemble": name, "size": made.size}
    if (pep := _pep(made)) is not None:
        record["pep"] = pep.describe()
    if extras.save is not None:
        record["saved"] = str(extras.save)
    if extras.html is not None:
        record["html"] = str(extras.html)
    return record


def _pep(made: Ensemble | None) -> Any:
    """The PEP in this ensemble, which temporal smoothing may wrap; None if there is none."""
    from calibrant.ensembles.pep import PEP

    inner = getattr(made, "predictor", made)
    return inner if isinstance(inner, PEP) else None


def _show(record: dict[str, Any], predicted: Predictions, made: Ensemble | None) -> None:
    from calibrant.report import numbers

    who = "" if made is None else f", {record['ensemble']} of {made.size}"
    if (pep := _pep(made)) is not None:
        fitted = pep.certificate
        gain = f", NLL where it was fitted {fitted.nll_at_zero:.4f} → {fitted.nll:.4f}" if fitted else ""
        who += f" (σ = {pep.sigma:.4g} on {pep.share:.1%} of the weights, --where {pep.where}{gain})"
        for note in fitted.notes if fitted else ():
            say(f"note: {note}", err=True)
    accuracy = numbers.value("accuracy", record["accuracy"])
    say(f"inputs: {record['inputs']}", err=True)
    file, split = record["file"], predicted.split
    say(f"{file}: {predicted.n:,} items of {split}, {predicted.k} classes{who}, accuracy {accuracy}")
    if "html" in record:
        say(f"the report, for a browser: {record['html']}")
