"""`calibrant probe A/ B/ --what hessian,hardness,… -o DIR`: why networks are (un)calibrated, side by side.

    DIR/probe.json             every number, DIR/report.html the page, DIR/WHAT/figure-1.svg … its figures
    DIR/WHAT/KEY.safetensors   what was measured of each model; it is read, not measured, the next time

Each probe is a line of `PROBES`: a module of `calibrant.cli` whose `probe(request)` returns what to print, the JSON
record and sections of the report. Without -o, results are kept with the run and no page is written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import block_json
from calibrant.cli.model_data import inputs_of, moment
from calibrant.errors import InputError, NotApplicableError, unknown
from calibrant.files import atomic, outputs
from calibrant.types import SCHEMA

if TYPE_CHECKING:
    from calibrant.cli.probe_request import Probed, Request
    from calibrant.data import Data
    from calibrant.ensembles.reference import Reference

PROBES: dict[str, str] = {
    "hessian": "probe_hessian",
    "hardness": "probe_hardness",
    "variance": "probe_variance",
    "fourier": "probe_fourier",
    "pep_effect": "probe_pep_effect",
    "landscape": "probe_landscape",
    "attack": "probe_attack",
    "robustness": "probe_robustness",
}
"""What can be asked for → the module of `calibrant.cli` that answers."""


def probe(
    models: Annotated[list[str], typer.Argument(help="the models to probe, side by side: RUN/, timm:NAME, …")],
    what: Annotated[str, typer.Option(help=f"separated by commas: {', '.join(PROBES)}")] = "robustness",
    runs: Annotated[
        list[str] | None, typer.Option("--runs", help="robustness: more runs of the first model's training")
    ] = None,
    split: Annotated[
        str, typer.Option(help="train, validation, calibration or test; several separated by commas")
    ] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="only the first N items of the split")] = None,
    batches: Annotated[int, typer.Option(min=1, help="hessian: how many mini-batches of the training part")] = 20,
    batch: Annotated[int | None, typer.Option(min=1, help="hessian: items of each; by default the recipe's")] = None,
    eigenvalues: Annotated[int, typer.Option(min=1, help="hessian: the largest K of each mini-batch")] = 1,
    method: Annotated[str, typer.Option(help="hessian: lanczos, or power as in the paper")] = "lanczos",
    dropout: Annotated[bool, typer.Option(help="hessian, fourier: with dropout active, as in the paper")] = True,
    grid: Annotated[int, typer.Option(min=3, help="landscape: points along each direction")] = 21,
    masks: Annotated[int, typer.Option(min=0, help="landscape: of dropout, each a landscape; 0: without dropout")] = 0,
    through: Annotated[
        str | None, typer.Option(help="landscape: two other runs, for the plane through all three")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="variance, fourier: names of layers; by default the building blocks")
    ] = None,
    passes: Annotated[int, typer.Option(min=2, help="variance: passes with dropout")] = 10,
    sigma: Annotated[float | None, typer.Option(help="pep_effect: PEP's σ; by default fitted on validation")] = None,
    attack: Annotated[str, typer.Option(help="attack: fgsm, pgd, frequency_fgsm")] = "fgsm,pgd",
    epsilon: Annotated[str, typer.Option(help="attack: budgets in pixels of [0, 1]")] = "0.01,0.02,0.03",
    ensemble: Annotated[str | None, typer.Option(help="attack: dropout attacks the pool of MC dropout")] = None,
    members: Annotated[int | None, typer.Option(min=1, help="attack, pep_effect: members of the ensemble")] = None,
    ruler: Annotated[str, typer.Option(help="robustness: ddn (cheap) or cw (the paper's)")] = "ddn",
    levels: Annotated[int, typer.Option(min=1, help="robustness: how many equally large levels")] = 10,
    variance: Annotated[
        str, typer.Option(help="robustness: of the true class, predicted, confidence or classes")
    ] = "true",
    data: Annotated[str | None, typer.Option(help="a data set; by default the run's own")] = None,
    data_root: Annotated[Path | None, typer.Option(help="folder of the data; by default CALIBRANT_DATA")] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="per channel, e.g. 0.5,0.5,0.5, or own; default: the model's, then a named data set's"),
    ] = None,
    std: Annotated[str | None, typer.Option(help="per channel, like --mean")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="folder for numbers, arrays, figures and the page")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="write the HTML report to this file")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON to stdout")] = False,
) -> None:
    """Why networks are (un)calibrated: curvature, hard samples, feature maps, PEP, attacks, robustness."""
    names = _words(what)
    for name in names:
        if name not in PROBES:
            raise unknown("probe", name, PROBES)
    if not names:
        raise InputError(f"--what is empty; pass one of {', '.join(PROBES)}")
    if out is not None:
        atomic.check_place(out, "keep the results in with -o")
    outputs.check((html, outputs.PAGE), (out, outputs.PROBE), inputs=[*models, *(runs or ()), data])
    options: dict[str, Any] = {"ruler": ruler, "levels": levels, "variance": variance}
    options |= {"batches": batches, "batch": batch, "eigenvalues": eigenvalues, "method": method, "dropout": dropout}
    options |= {"grid": grid, "masks": masks, "through": None if through is None else _words(through)}
    options |= {"layers": None if layers is None else _words(layers), "passes": passes, "sigma": sigma}
    options |= {"attack": _words(attack), "epsilon": _numbers(epsilon), "ensemble": ensemble, "members": members}
    moments = moment(mean, "--mean"), moment(std, "--std")
    request = _request(models, runs or (), names, data, data_root, split, limit, device, out, moments, options)
    found, refused = _answers(request, names)
    inputs = [inputs_of(request.data, m.mean, m.std) for m in request.models]
    record: dict[str, Any] = {"schema": SCHEMA, "inputs": inputs}
    record |= {name: found[name].record if name in found else {"refused": refused[name]} for name in names}
    if out is not None or html is not None:
        from calibrant.cli.probe_page import write

        html = write(out, html, request, record, found)
    if as_json:
        block_json(record)
        return
    from calibrant.cli.layout import Console

    console = Console(highlight=False)
    for each in found.values():
        for shown in each.shown:
            console.print(shown, markup=False, soft_wrap=isinstance(shown, str))
    for name, why in refused.items():
        console.say(f"{name}: {why}")
    for words in dict.fromkeys(inputs):
        console.say(f"inputs: {words}")
    if html is not None:
        console.say(f"the report, for a browser: {html}")


def _answers(request: Request, names: Sequence[str]) -> tuple[dict[str, Probed], dict[str, str]]:
    """What each probe found, and what those say that do not apply to these models; one must apply."""
    found: dict[str, Probed] = {}
    refused: dict[str, str] = {}
    for name in names:
        try:
            found[name] = import_module(f"calibrant.cli.{PROBES[name]}").probe(request)
        except NotApplicableError as error:
            if len(refused) + 1 == len(names):
                raise
            refused[name] = str(error)
    return found, refused


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _numbers(text: str) -> list[float]:
    try:
        found = [float(word) for word in _words(text)]
    except ValueError:
        raise InputError(f"--epsilon {text!r} is not numbers separated by commas, e.g. 0.01,0.03") from None
    if not found or not all(0 <= value <= 1 for value in found):
        raise InputError(f"--epsilon {text!r}: budgets are of pixels, in 0 … 1")
    return found


def _request(
    models: Sequence[str],
    runs: Sequence[str],
    what: Sequence[str],
    data: str | None,
    root: Path | None,
    split: str,
    limit: int | None,
    device: str,
    out: Path | None,
    moments: tuple[Any, Any],
    options: dict[str, Any],
) -> Request:
    from calibrant.cli.device import device_of
    from calibrant.cli.model_data import data_name, fed
    from calibrant.cli.notes import check_once, say_notes, say_recipes
    from calibrant.cli.probe_request import Request
    from calibrant.data import load
    from calibrant.data.label_maps import check_one_label_each
    from calibrant.ensembles.reference import resolve
    from calibrant.functional.inputs import as_split

    splits = tuple(as_split(s.strip()).value for s in split.split(",") if s.strip())
    if not splits:
        raise InputError("--split is empty; pass train, validation, calibration or test")
    where = device_of(device)
    found = tuple(resolve(model) for model in (*models, *runs))
    first = found[0]
    name = data_name(data, first)
    own = name == first.data
    store = out if out is not None else Path(models[0]) if Path(models[0]).is_dir() else None
    if store is None:
        raise InputError(f"{models[0]} is not a run; pass a folder for the results with -o")
    loaded = load(
        name,
        root=root,
        seed=first.data_seed if own else 0,
        sizes=first.sizes if own else None,
        shape=first.shape,
    )
    check_one_label_each(loaded.splits, name)
    check_once([*models, *runs])
    if "robustness" in what:
        _check_store(store, first, loaded, splits, str(options["ruler"]), limit)
        say_recipes([models[0], *runs], [first, *found[len(models) :]])
    say_notes(found)
    fed_by = (fed(model, loaded, name, moments) for model in found)
    found = tuple(replace(model, mean=mean, std=std) for model, (mean, std) in zip(found, fed_by, strict=True))
    kept = store if out is not None else store / "probe"
    compared, more = found[: len(models)], found[len(models) :]
    return Request(
        compared, loaded, splits, limit, where, store, options, progress=sys.stderr.isatty(), runs=more, kept=kept
    )


def _check_store(
    store: Path, model: Reference, data: Data, splits: Sequence[str], ruler: str, limit: int | None
) -> None:
    """What is to be measured needs a place, before anything is computed; what is kept already does not."""
    from calibrant.training import distances
    from calibrant.types import Split

    folder, parts = store / distances.FOLDER, [Split(split) for split in splits if Split(split) in data.splits]
    if atomic.takes_files(folder / ruler):
        return
    if distances.missing(model.members, data, parts, folder, ruler=ruler, limit=limit):
        atomic.check_place(folder / ruler, "keep the results in with -o")  # it is made with what is kept in it
