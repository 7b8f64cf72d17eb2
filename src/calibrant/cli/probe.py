"""`calibrant probe A/ B/ --what hessian,hardness,… -o DIR`: why networks are (un)calibrated, side by side.

    DIR/probe.json             every number, DIR/report.html the page, DIR/WHAT/figure-1.svg … its figures
    DIR/WHAT/KEY.safetensors   what was measured of each model; it is read, not measured, the next time

Each probe is a line of `PROBES`: a module of `calibrant.cli` whose function of the probe's name takes a `Request` and
returns what to print, the JSON record and sections of the report. Without -o, results are kept with the run and no page
is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import block_json
from calibrant.cli.model_data import inputs_of
from calibrant.cli.probe_request import resolved, words
from calibrant.errors import InputError, NotApplicableError, unknown
from calibrant.files import atomic, outputs
from calibrant.types import SCHEMA

if TYPE_CHECKING:
    from calibrant.cli.probe_request import Request
    from calibrant.cli.probe_results import Probed

PROBES: dict[str, str] = {
    "hessian": "probe_hessian",
    "landscape": "probe_landscape",
    "sharpness": "probe_sharpness",
    "hardness": "probe_hardness",
    "variance": "probe_features",
    "fourier": "probe_features",
    "neighbours": "probe_features",
    "signs": "probe_signs",
    "pep_effect": "probe_pep_effect",
    "overfitting": "probe_overfitting",
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
    batches: Annotated[
        int, typer.Option(min=1, help="hessian, signs: how many mini-batches of the training part")
    ] = 20,
    batch: Annotated[int | None, typer.Option(min=1, help="hessian: items of each; by default the recipe's")] = None,
    eigenvalues: Annotated[int, typer.Option(min=1, help="hessian: the largest K of each mini-batch")] = 1,
    method: Annotated[str, typer.Option(help="hessian: lanczos, or power as in the paper")] = "lanczos",
    dropout: Annotated[bool, typer.Option(help="hessian, fourier: no dropout; in the paper it is active")] = True,
    grid: Annotated[int, typer.Option(min=3, help="landscape: points along each direction")] = 21,
    masks: Annotated[int, typer.Option(min=0, help="landscape: of dropout, each a landscape; 0: without dropout")] = 0,
    through: Annotated[
        str | None, typer.Option(help="landscape: two other runs, for the plane through all three")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="variance, fourier, neighbours: names of layers; by default the building blocks")
    ] = None,
    passes: Annotated[int, typer.Option(min=2, help="variance: passes with dropout")] = 10,
    sigma: Annotated[float | None, typer.Option(help="pep_effect: PEP's σ; by default fitted on validation")] = None,
    attack: Annotated[str, typer.Option(help="attack: fgsm, pgd, frequency_fgsm")] = "fgsm,pgd",
    epsilon: Annotated[str, typer.Option(help="attack: budgets in pixels of [0, 1]")] = "0.01,0.02,0.03",
    ensemble: Annotated[str | None, typer.Option(help="attack: dropout attacks the pool of MC dropout")] = None,
    members: Annotated[
        int | None, typer.Option(min=1, help="attack, pep_effect, overfitting: members of the ensemble")
    ] = None,
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
    given = dict(locals())
    names = words(what)
    for name in names:
        if name not in PROBES:
            raise unknown("probe", name, PROBES)
    if not names:
        raise InputError(f"--what is empty; pass one of {', '.join(PROBES)}")
    if out is not None:
        atomic.check_place(out, "keep the results in with -o")
    outputs.check((html, outputs.PAGE), (out, outputs.PROBE), inputs=[*models, *(runs or ()), data])
    request = resolved(given, names)
    found, refused = _answers(request, names)
    inputs = [inputs_of(request.data, m.mean, m.std) for m in request.models]
    record: dict[str, Any] = {"schema": SCHEMA, "inputs": inputs}
    record |= {name: found[name].record if name in found else {"refused": refused[name]} for name in names}
    if out is not None or html is not None:
        from calibrant.cli.probe_page import write

        html = write(out, html, request, record, found)
    if as_json:
        block_json(record)
    else:
        _show(found, refused, inputs, html)


def _show(found: dict[str, Probed], refused: dict[str, str], inputs: Sequence[str], html: Path | None) -> None:
    from calibrant.cli.layout import Console

    console = Console(highlight=False)
    for each in found.values():
        for shown in each.shown:
            console.print(shown, markup=False, soft_wrap=isinstance(shown, str))
    for name, why in refused.items():
        console.say(f"{name}: {why}")
    for said in dict.fromkeys(inputs):
        console.say(f"inputs: {said}")
    if html is not None:
        console.say(f"the report, for a browser: {html}")


def _answers(request: Request, names: Sequence[str]) -> tuple[dict[str, Probed], dict[str, str]]:
    """What each probe found, and what those say that do not apply to these models; one must apply."""
    found: dict[str, Probed] = {}
    refused: dict[str, str] = {}
    for name in names:
        try:
            found[name] = getattr(import_module(f"calibrant.cli.{PROBES[name]}"), name)(request)
        except NotApplicableError as error:
            if len(refused) + 1 == len(names):
                raise
            refused[name] = str(error)
    return found, refused
