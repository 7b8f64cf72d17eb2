"""`calibrant probe A/ B/ --what hessian,hardness,… -o DIR`: why networks are (un)calibrated, side by side.

    DIR/probe.json             every number
    DIR/report.html            the page
    DIR/WHAT/figure-1.svg …    its figures
    DIR/WHAT/KEY.safetensors   what was measured of one model; the next time it is read, not measured

Without -o, results are kept with the run and no page is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import block_json
from calibrant.cli.model_data import Inputs, inputs_of
from calibrant.cli.options import Device, Html, Json, numbers, separated
from calibrant.cli.probes import PROBES
from calibrant.errors import InputError, NotApplicableError, unknown
from calibrant.files import outputs
from calibrant.types import SCHEMA

if TYPE_CHECKING:
    from calibrant.cli.probes.request import Request
    from calibrant.cli.probes.results import Probed


@dataclass(frozen=True)
class Settings:
    """Options of single probes."""

    batches: Annotated[int, typer.Option(min=1, help="hessian, signs: number of mini-batches of the training part")] = (
        20
    )
    batch: Annotated[int | None, typer.Option(min=1, help="hessian: items per mini-batch; by default the recipe's")] = (
        None
    )
    eigenvalues: Annotated[
        int, typer.Option(min=1, help="hessian: how many eigenvalues of each mini-batch, the largest first")
    ] = 1
    method: Annotated[str, typer.Option(help="hessian: lanczos, or power as in the paper")] = "lanczos"
    dropout: Annotated[bool, typer.Option(help="hessian, fourier: switch dropout off; in the paper it is active")] = (
        True
    )
    grid: Annotated[int, typer.Option(min=3, help="landscape: points along each direction")] = 21
    masks: Annotated[
        int, typer.Option(min=0, help="landscape: dropout masks, one landscape each; 0: without dropout")
    ] = 0
    through: Annotated[
        str | None, typer.Option(help="landscape: two other runs B,C: the plane goes through all three")
    ] = None
    layers: Annotated[
        str | None, typer.Option(help="variance, fourier, neighbours: names of layers; by default the building blocks")
    ] = None
    passes: Annotated[int, typer.Option(min=2, help="variance: passes with dropout")] = 10
    sigma: Annotated[float | None, typer.Option(help="pep_effect: PEP's σ; by default fitted on validation")] = None
    attack: Annotated[str, typer.Option(help="attack: fgsm, pgd, frequency_fgsm")] = "fgsm,pgd"
    epsilon: Annotated[str, typer.Option(help="attack: budgets in pixels of [0, 1]")] = "0.01,0.02,0.03"
    ensemble: Annotated[str | None, typer.Option(help="attack: dropout, to attack the pool of MC dropout")] = None
    members: Annotated[
        int | None, typer.Option(min=1, help="attack, pep_effect, overfitting: members of the ensemble")
    ] = None
    ruler: Annotated[str, typer.Option(help="robustness: ddn (cheap) or cw (the paper's)")] = "ddn"
    levels: Annotated[int, typer.Option(min=1, help="robustness: how many equally large levels")] = 10
    variance: Annotated[
        str,
        typer.Option(
            help="robustness: variance over runs of the probability of: true, predicted, confidence or classes"
        ),
    ] = "true"

    def checked(self) -> dict[str, Any]:
        """Return {option: value}; what commas separate becomes a list."""
        lists = {name: text and separated(text) for name, text in (("through", self.through), ("layers", self.layers))}
        return {**vars(self), **lists, "attack": separated(self.attack), "epsilon": _budgets(self.epsilon)}


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
    from calibrant.cli.probes.request import resolved

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


def _budgets(text: str) -> list[float]:
    """Return the numbers of --epsilon, each in 0 … 1."""
    found = list(dict.fromkeys(numbers(text, "--epsilon", float)))
    if not all(0 <= value <= 1 for value in found):
        raise InputError(f"--epsilon {text!r}: budgets are of pixels, in 0 … 1")
    return found


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
