"""`calibrant probe RUN/ --what robustness,…`: why a network behaves as it does.

Each probe is a line of `PROBES`: a module of `calibrant.cli` whose `probe(request)` computes it, stores
expensive results with the run, and returns what to print, the JSON record and a section of the report.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import block_json
from calibrant.cli.model_data import inputs_of, moment
from calibrant.errors import InputError, unknown
from calibrant.files import outputs
from calibrant.types import SCHEMA

if TYPE_CHECKING:
    import torch

    from calibrant.data import Data
    from calibrant.data.records import Part
    from calibrant.ensembles.reference import Reference
    from calibrant.report.panels import Panel
    from calibrant.types import Predictions

PROBES: dict[str, str] = {"robustness": "probe_robustness"}
"""What can be asked for → the module of `calibrant.cli` that answers."""


@dataclass(frozen=True)
class Request:
    """What was asked, resolved: networks (the first is the one that is probed), data, and every option."""

    models: tuple[Reference, ...]  # with the mean and std that their inputs are normalised by
    data: Data
    splits: tuple[str, ...]
    limit: int | None
    device: torch.device
    store: Path  # where what is computed is kept
    options: dict[str, Any] = field(default_factory=dict)
    progress: bool = False

    def part(self, split: str) -> Part:
        """The items that are probed: all of the split, or its first `limit`."""
        import torch

        whole = self.data[split]
        if self.limit is None or self.limit >= whole.n:
            return whole
        return whole.take(torch.arange(self.limit), whole.split)

    def rehearse(self) -> None:
        """Refuse a network that cannot read this data, or answers with other classes, before anything is computed."""
        from calibrant.functional.model_output import logits_of
        from calibrant.training.compatibility import blank_logits
        from calibrant.types import Split

        for model in self.models:
            for network in model.members:
                logits = logits_of(blank_logits(model.name, self.data, Split(self.splits[0]), network))
                if logits.ndim != 2:
                    raise InputError(
                        f"{model.name} returns shape {tuple(logits.shape)} for two items of {self.data.name}; "
                        "probe a network that returns [N, K]"
                    )
                if (k := logits.shape[1]) != self.data.k:
                    raise InputError(
                        f"{model.name} has {k} classes and {self.data.name} has {self.data.k}; "
                        "pass data with the same classes"
                    )

    def inputs(self, model: Reference) -> Data:
        """The data as the model is fed it."""
        return replace(self.data, mean=model.mean, std=model.std)

    def predictions(self, model: Reference, split: str) -> Predictions:
        """What a model says about these items; several members as [M, N, K]."""
        from calibrant.data import Batches
        from calibrant.ensembles.single import predict

        networks = [m.to(self.device) for m in model.members]
        fed = self.inputs(model)
        batches = Batches(self.part(split), 1000, device=self.device, mean=fed.mean, std=fed.std)
        return predict(
            networks if len(networks) > 1 else networks[0],
            batches,
            device=self.device,
            split=split,
            classes=self.data.classes,
            source=model.name,
        )


@dataclass(frozen=True)
class Probed:
    """What a probe found: for JSON, for the terminal, sections of the report and the predictions that they are of."""

    record: dict[str, Any]
    shown: Sequence[Any] = ()
    panels: Sequence[Panel] = ()
    audited: Sequence[Predictions] = ()


def probe(
    models: Annotated[list[str], typer.Argument(help="the model to probe (RUN/, timm:NAME, …), then more runs of it")],
    what: Annotated[str, typer.Option(help=f"separated by commas: {', '.join(PROBES)}")] = "robustness",
    runs: Annotated[
        list[str] | None, typer.Option("--runs", help="more runs of the same training, for the variance over runs")
    ] = None,
    split: Annotated[
        str, typer.Option(help="train, validation, calibration or test; several separated by commas")
    ] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="only the first N items of the split")] = None,
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
        Path | None, typer.Option("-o", "--out", help="folder for the results; by default the run's own")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="write an HTML report to this file")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON to stdout")] = False,
) -> None:
    """Why a network behaves as it does: robustness to attacks and calibration by its levels."""
    names = [name.strip() for name in what.split(",") if name.strip()]
    for name in names:
        if name not in PROBES:
            raise unknown("probe", name, PROBES)
    if not names:
        raise InputError(f"--what is empty; pass one of {', '.join(PROBES)}")
    outputs.check((html, outputs.PAGE), inputs=[*models, *(runs or ()), data])
    options = {"ruler": ruler, "levels": levels, "variance": variance}
    moments = moment(mean, "--mean"), moment(std, "--std")
    request = _request([*models, *(runs or ())], data, data_root, split, limit, device, out, moments, options)
    found = {name: import_module(f"calibrant.cli.{PROBES[name]}").probe(request) for name in names}
    if html is not None:
        _page(html, found)
    inputs = [inputs_of(request.data, model.mean, model.std) for model in request.models]
    if as_json:
        record = {"schema": SCHEMA, "inputs": inputs, **{name: each.record for name, each in found.items()}}
        block_json(record)
        return
    from calibrant.cli.layout import Console

    console = Console(highlight=False)
    for each in found.values():
        for shown in each.shown:
            console.print(shown, markup=False, soft_wrap=isinstance(shown, str))
    for words in dict.fromkeys(inputs):
        console.say(f"inputs: {words}")
    if html is not None:
        console.say(f"the report, for a browser: {html}")


def _request(
    models: Sequence[str],
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
    from calibrant.cli.notes import check_runs, say_notes
    from calibrant.data import load
    from calibrant.data.label_maps import check_one_label_each
    from calibrant.ensembles.reference import resolve
    from calibrant.functional.inputs import as_split

    splits = tuple(as_split(s.strip()).value for s in split.split(",") if s.strip())
    if not splits:
        raise InputError("--split is empty; pass train, validation, calibration or test")
    where = device_of(device)
    found = tuple(resolve(model) for model in models)
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
    _check_store(store, first, loaded, splits, str(options["ruler"]), limit)
    check_runs(models, found)
    say_notes(found)
    fed_by = (fed(model, loaded, name, moments) for model in found)
    found = tuple(replace(model, mean=mean, std=std) for model, (mean, std) in zip(found, fed_by, strict=True))
    return Request(
        found,
        loaded,
        splits,
        limit,
        where,
        store,
        options,
        progress=sys.stderr.isatty(),
    )


def _check_store(
    store: Path, model: Reference, data: Data, splits: Sequence[str], ruler: str, limit: int | None
) -> None:
    """What is to be measured needs a place, before anything is computed; what is kept already does not."""
    from calibrant.files import atomic
    from calibrant.training import distances
    from calibrant.types import Split

    folder, parts = store / distances.FOLDER, [Split(split) for split in splits if Split(split) in data.splits]
    if atomic.takes_files(folder / ruler):
        return
    if distances.missing(model.members, data, parts, folder, ruler=ruler, limit=limit):
        atomic.check_place(folder / ruler, "keep the results in with -o")  # it is made with what is kept in it


def _page(path: Path, found: dict[str, Probed]) -> None:
    from calibrant.metrics.evaluate import evaluate
    from calibrant.report import html, provenance

    audited = list({id(p): p for each in found.values() for p in each.audited}.values())
    audits = [html.Audit.of(p, evaluate(p), p.source) for p in audited]
    panels = [panel for each in found.values() for panel in each.panels]
    html.write(path, audits, command=provenance.command(), panels=panels)
