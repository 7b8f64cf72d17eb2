"""`calibrant probe A/ B/ --what hessian,hardness,… -o DIR`: why networks are (un)calibrated, side by side.

    DIR/probe.json             every number
    DIR/report.html            the page
    DIR/WHAT/figure-1.svg …    its figures
    DIR/WHAT/KEY.safetensors   what was measured of one model; the next time it is read, not measured

Without -o, results are kept with the run and no page is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import block_json
from calibrant.cli.model_data import Inputs, inputs_of
from calibrant.cli.options import Device, Html, Json, separated
from calibrant.cli.probes import PROBES
from calibrant.cli.probes.request import Settings, resolved
from calibrant.errors import InputError, NotApplicableError, unknown
from calibrant.files import outputs
from calibrant.types import SCHEMA

if TYPE_CHECKING:
    from calibrant.cli.probes.request import Request
    from calibrant.cli.probes.results import Probed


def probe(
    *,
    models: Annotated[list[str], typer.Argument(help="the models to probe, side by side: RUN/, timm:NAME, …")],
    what: Annotated[str, typer.Option(help=f"separated by commas: {', '.join(PROBES)}")] = "robustness",
    runs: Annotated[
        list[str] | None, typer.Option("--runs", help="robustness: more runs of the first model's training")
    ] = None,
    split: Annotated[
        str, typer.Option(help="train, validation, calibration or test; several separated by commas")
    ] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="only the first N items of the split")] = None,
    settings: Settings,
    inputs: Inputs,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="folder for numbers, arrays, figures and the page")
    ] = None,
    html: Html = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    names = separated(what)
    for name in names:
        if name not in PROBES:
            raise unknown("probe", name, PROBES)
    if not names:
        raise InputError(f"--what is empty; pass one of {', '.join(PROBES)}")
    outputs.check((html, outputs.PAGE), (out, outputs.PROBE), inputs=[*models, *(runs or ()), inputs.data])
    options = settings.checked()
    request = resolved(names, models, runs or [], split, limit, inputs, out, device, options)
    found, refused = _answers(request, names)
    fed = [inputs_of(request.data, m.mean, m.std) for m in request.models]
    record: dict[str, Any] = {"schema": SCHEMA, "inputs": fed}
    record |= {name: found[name].record if name in found else {"refused": refused[name]} for name in names}
    if out is not None or html is not None:
        from calibrant.cli.probes.page import write

        html = write(out, html, request, record, found)
    if as_json:
        block_json(record)
    else:
        _show(found, refused, fed, html)


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
    """Return what each probe found, and why others do not apply to these models; at least one must apply."""
    found: dict[str, Probed] = {}
    refused: dict[str, str] = {}
    for name in names:
        try:
            found[name] = getattr(import_module(f"calibrant.cli.probes.{name}"), name)(request)
        except NotApplicableError as error:
            if len(refused) + 1 == len(names):
                raise
            refused[name] = str(error)
    return found, refused
