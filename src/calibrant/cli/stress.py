"""`calibrant stress MODEL --suite corruptions|perturbations|ood|all -o OUT/`: is confidence still right under shift?

Each cell is written when it is done: a kill loses the cell in flight, and the same command resumes. The logits of the
cells are in OUT/cells/*.npz (`calibrant audit` reads those with labels), the results in OUT/stress.json.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import block, block_json, say
from calibrant.cli.ensemble_options import Ensembling
from calibrant.cli.model_data import Inputs, inputs_of
from calibrant.cli.options import Device, Html, Intervals, Json, Models, separated
from calibrant.cli.stress_inputs import Suite
from calibrant.errors import InputError
from calibrant.files import outputs

if TYPE_CHECKING:
    from calibrant.cli.model_data import Setting
    from calibrant.decisions import Rule
    from calibrant.diagnostics.stress import Folder, Material, Subject
    from calibrant.posthoc.map import FittedMap
    from calibrant.report.stress_report import StressReport


@dataclass(frozen=True)
class Judged:
    """What is judged under shift besides the model itself."""

    reference: Annotated[
        Path | None, typer.Option(help="stress folder of another model: adds mCE, mCNLL, mCECE against it")
    ] = None
    map_: Annotated[Path | None, typer.Option("--map", help="a fitted map to judge under shift")] = None
    rule: Annotated[
        Path | None, typer.Option(help="a rule of `calibrant decide`: is its promise kept under each shift?")
    ] = None
    calibrators: Annotated[str, typer.Option(help="calibrators to fit on clean data, separated by commas, or none")] = (
        "temperature,auto"
    )
    calibration: Annotated[str, typer.Option(help="the split that calibrators and PEP's σ are fitted on")] = (
        "calibration"
    )

    @property
    def names(self) -> list[str]:
        return [] if self.calibrators == "none" else separated(self.calibrators)

    def maps(self) -> dict[str, FittedMap]:
        """The fitted map by its name in tables."""
        from calibrant.posthoc.storage import load

        return {} if self.map_ is None else {f"map {self.map_.name}": load(self.map_)}

    def held_out(self, found: Setting, split: str) -> tuple[str | None, list[str]]:
        """The split that calibrators are fitted on, if there are any, and notes about it."""
        from calibrant.functional.inputs import as_split
        from calibrant.posthoc.fit import resolve

        for name in self.names:
            resolve(name, {})
        if not self.names:
            return None, []
        wanted = as_split(self.calibration)
        if wanted == as_split(split):
            raise InputError(f"--calibration {self.calibration} is the split that is stressed; fit on another one")
        if wanted not in found.data.splits:
            return None, [f"no calibrators: {found.name} has no {wanted.value} split"]
        if not found.own:
            fitted = f"calibrators are fitted on {found.name}'s {wanted.value} items"
            return wanted.value, [f"{fitted}; if the model was trained on them, they flatter it"]
        return wanted.value, []


def stress(
    *,
    model: Models,
    out: Annotated[Path, typer.Option("-o", "--out", help="folder of the cells; an unfinished one is resumed")],
    suite: Suite,
    judged: Judged,
    split: Annotated[str, typer.Option(help="the split that is stressed")] = "test",
    ensembling: Ensembling,
    html: Html = None,
    limit: Annotated[int | None, typer.Option(min=2, help="at most this many items, spread over the set")] = None,
    intervals: Intervals = True,
    inputs: Inputs,
    batch: Annotated[int, typer.Option(min=1, help="images per batch")] = 500,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(help="seed of the shifts, the ensemble and the bootstrap")] = 0,
    as_json: Json = False,
) -> None:
    from calibrant.cli.stress_inputs import load_model, material_of, subject_of
    from calibrant.data.ood import usual_ood
    from calibrant.decisions.storage import load_rule
    from calibrant.diagnostics.stress import Folder
    from calibrant.report.stress_run import completed, stressed

    read = [*model, inputs.data, *suite.paths, judged.reference, judged.map_, judged.rule]
    outputs.check((out, outputs.STRESS), (html, outputs.PAGE), inputs=read)
    if ensembling.ensemble == "temporal":
        raise InputError("--ensemble temporal averages the frames of a stream; test items are not a stream; drop it")
    ensembling.check()
    choice, maps = suite.chosen(), judged.maps()
    rule = None if judged.rule is None else load_rule(judged.rule)
    found = load_model(model, inputs, device)
    held_out, notes = judged.held_out(found, split)
    material = material_of(found, suite, split, held_out, root=inputs.data_root, limit=limit, seed=seed, batch=batch)
    outside = suite.outside or []
    if "ood" in choice.suites and not outside:
        outside, more = usual_ood(found.data, inputs.data_root)
        notes += more
    subject = subject_of(found, ensembling, fit_on=judged.calibration, batch=batch, seed=seed)
    _check_classes(subject, material, found, rule)
    report = stressed(
        subject,
        material,
        completed(choice, material, outside),
        out=out,
        settings=_settings(model, found, split, ensembling, judged, seed),
        calibrators=judged.names,
        maps=maps,
        rule=rule,
        reference=judged.reference,
        seed=seed if intervals else None,
        classes=found.data.classes,
        progress=sys.stderr.isatty(),
    )
    report = replace(report, outcome=replace(report.outcome, notes=(*notes, *report.outcome.notes)))
    _write_and_show(report, Folder(out), html, inputs_of(found.data, found.mean, found.std), as_json)


def _check_classes(subject: Subject, material: Material, found: Setting, rule: Rule | None) -> None:
    """Refuse a model with other classes than the data or the rule."""
    from calibrant.diagnostics.stress.run import count_classes
    from calibrant.report.stress_rule import check_rule

    k = count_classes(subject, material, found.first.name, found.name)
    if k != found.data.k:
        raise InputError(f"the model has {k} classes and {found.name} has {found.data.k}: not the same task")
    check_rule(rule, k)


def _settings(
    model: Sequence[str], found: Setting, split: str, ensembling: Ensembling, judged: Judged, seed: int
) -> dict[str, Any]:
    """The settings of the cells; a folder is resumed only with the same ones."""
    ensemble = {"name": ensembling.ensemble, "given": {**ensembling.given, "seed": seed}, "fit_on": judged.calibration}
    return {
        "model": [Path(m).name if Path(m).is_dir() else m for m in model],
        "data": Path(found.name).name if Path(found.name).exists() else found.name,
        "split": split,
        "ensemble": None if ensembling.ensemble is None else ensemble,
    }


def _write_and_show(report: StressReport, folder: Folder, html: Path | None, inputs: str, as_json: bool) -> None:
    import calibrant.provenance as provenance

    record = {**report.to_dict(), "inputs": inputs, "made": provenance.made()}
    folder.record(record)
    if html is not None:
        from calibrant.report.html import Audit, write

        clean = report.outcome.clean_predictions
        name = f"{'+'.join(report.settings['model'])} on {report.settings['data']}"
        audit = Audit.of(clean, report.outcome.clean, name)
        write(html, [audit], command=provenance.command(), panels=report.panels())
    if as_json:
        block_json(record, indent=None)
        return
    block(report.table())
    say(f"inputs: {inputs}")
    for note in report.outcome.notes:
        say(f"note: {note}")
    say(f"logits: {folder.path}/cells, record: {folder.path}/stress.json")
    if html is not None:
        say(f"the report, for a browser: {html}")
