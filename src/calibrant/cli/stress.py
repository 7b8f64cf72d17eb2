"""`calibrant stress MODEL --suite corruptions|perturbations|ood|all -o OUT/`: is confidence still right under shift?

Cells are written as they are done: a kill loses the one in flight, and the same command goes on. What a cell shows is
in OUT/cells/*.npz (`calibrant audit` takes those with labels), what it all means in OUT/stress.json.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from calibrant.diagnostics.stress import Folder
    from calibrant.posthoc.map import FittedMap
    from calibrant.report.stress_report import StressReport


def stress(
    *,
    model: Models,
    out: Annotated[Path, typer.Option("-o", "--out", help="folder of the cells; an unfinished one is resumed")],
    data: Annotated[
        str | None,
        typer.Option(help="a data set, some classes (cifar10[0-4]), FILE.npz or folder; by default the run's own"),
    ] = None,
    suite: Suite,
    reference: Annotated[
        Path | None, typer.Option(help="stress folder of another model: adds mCE, mCNLL, mCECE against it")
    ] = None,
    map_: Annotated[Path | None, typer.Option("--map", help="a fitted map to judge under shift")] = None,
    rule: Annotated[
        Path | None, typer.Option(help="a rule of `calibrant decide`: what becomes of its promise under each shift")
    ] = None,
    calibrators: Annotated[
        str, typer.Option(help="fitted on clean data, separated by commas, or none")
    ] = "temperature,auto",
    calibration: Annotated[str, typer.Option(help="the split that calibrators are fitted on")] = "calibration",
    split: Annotated[str, typer.Option(help="the split that is stressed")] = "test",
    ensemble: Annotated[str | None, typer.Option(help="pep, dropout, deep, swa, swag or snapshot")] = None,
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
    """Is the confidence still right when the world moves? Corruptions, sequences, foreign items; resumable."""
    from calibrant.cli.stress_inputs import material_of, opened, subject_of
    from calibrant.data.ood import usual_ood
    from calibrant.decisions.storage import load_rule
    from calibrant.diagnostics.stress import Folder
    from calibrant.diagnostics.stress.run import tried
    from calibrant.report.stress_rule import check_rule
    from calibrant.report.stress_run import completed, stressed

    outputs.check(
        (out, outputs.STRESS), (html, outputs.PAGE), inputs=[*model, data, *suite.paths, reference, map_, rule]
    )
    if ensemble == "temporal":
        raise InputError(
            "--ensemble temporal averages the frames of a stream, and test items are not a stream; drop it"
        )
    given = {**ensembling.of(ensemble), "seed": seed}
    choice, maps, decided = suite.chosen(), _loaded(map_), None if rule is None else load_rule(rule)
    setting = opened(model, data, inputs, device)
    names = [] if calibrators == "none" else separated(calibrators)
    held, notes = _held(setting, calibration, split, names)
    material = material_of(setting, suite, split, held, root=inputs.data_root, limit=limit, seed=seed, batch=batch)
    outside = suite.outside or []
    if "ood" in choice.suites and not outside:
        outside, more = usual_ood(setting.data, inputs.data_root)
        notes += more
    choice = completed(choice, material, outside)
    subject = subject_of(setting, ensemble, given, calibration, batch)
    k = tried(subject, material, setting.first.name, setting.name)
    if k != setting.data.k:
        raise InputError(f"the model has {k} classes and {setting.name} has {setting.data.k}: not the same task")
    check_rule(decided, k)
    settings = {
        "model": [Path(m).name if Path(m).is_dir() else m for m in model],
        "data": Path(setting.name).name if Path(setting.name).exists() else setting.name,
        "split": split,
        "ensemble": None if ensemble is None else {"name": ensemble, "given": given, "fit_on": calibration},
    }
    report = stressed(
        subject,
        material,
        choice,
        out=out,
        settings=settings,
        calibrators=names,
        maps=maps,
        rule=decided,
        reference=reference,
        seed=seed if intervals else None,
        classes=setting.data.classes,
        progress=sys.stderr.isatty(),
    )
    report = replace(report, outcome=replace(report.outcome, notes=(*notes, *report.outcome.notes)))
    _told(report, Folder(out), html, inputs_of(setting.data, setting.mean, setting.std), as_json)


def _loaded(folder: Path | None) -> dict[str, FittedMap]:
    if folder is None:
        return {}
    from calibrant.posthoc.storage import load

    return {f"map {folder.name}": load(folder)}


def _held(setting: Setting, calibration: str, split: str, names: list[str]) -> tuple[str | None, list[str]]:
    """The split that calibrators are fitted on, and what must be said about it."""
    from calibrant.functional.inputs import as_split
    from calibrant.posthoc.fit import resolve

    for name in names:
        resolve(name, {})
    if not names:
        return None, []
    wanted = as_split(calibration)
    if wanted == as_split(split):
        raise InputError(f"--calibration {calibration} is the split that is stressed; fit on another one")
    if wanted not in setting.data.splits:
        return None, [f"no calibrators: {setting.name} has no {wanted.value} split"]
    if not setting.own:
        said = f"calibrators are fitted on {setting.name}'s {wanted.value} items"
        return wanted.value, [f"{said}; if the model was trained on them, they flatter it"]
    return wanted.value, []


def _told(report: StressReport, folder: Folder, html: Path | None, fed: str, as_json: bool) -> None:
    import calibrant.provenance as provenance

    record = {**report.to_dict(), "inputs": fed, "made": provenance.made()}
    folder.record(record)
    if html is not None:
        from calibrant.report.html import Audit, write
        from calibrant.report.stress_panels import panels

        clean = report.outcome.clean_predictions
        name = f"{'+'.join(report.settings['model'])} on {report.settings['data']}"
        audit = Audit.of(clean, report.outcome.clean, name)
        write(html, [audit], command=provenance.command(), panels=panels(report))
    if as_json:
        block_json(record, indent=None)
        return
    block(report.table())
    say(f"inputs: {fed}")
    for note in report.outcome.notes:
        say(f"note: {note}")
    say(f"logits: {folder.path}/cells, record: {folder.path}/stress.json")
    if html is not None:
        say(f"the report, for a browser: {html}")
