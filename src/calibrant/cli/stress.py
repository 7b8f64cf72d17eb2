"""`calibrant stress MODEL --suite corruptions|perturbations|ood|all -o OUT/`: is confidence still right under shift?

Cells are written as they are done: a kill loses the one in flight, and the same command goes on. What a cell shows is
in OUT/cells/*.npz (`calibrant audit` takes those with labels), what it all means in OUT/stress.json.
"""

from __future__ import annotations

import sys
from dataclasses import replace
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
    from calibrant.cli.stress_inputs import Ensembled
    from calibrant.decisions import Rule
    from calibrant.diagnostics.stress import Choice, Folder, Material, Subject
    from calibrant.diagnostics.stress.store import Arrays
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
    from calibrant.cli.stress_inputs import ensembled, material_of, opened, subject_of
    from calibrant.decisions.storage import load_rule
    from calibrant.diagnostics.stress import Folder, planned
    from calibrant.diagnostics.stress.run import rehearsed
    from calibrant.report.stress_report import judged

    outputs.check(
        (out, outputs.STRESS), (html, outputs.PAGE), inputs=[*model, data, *suite.paths, reference, map_, rule]
    )
    made, choice = ensembled(ensemble, ensembling, seed, calibration), suite.chosen()
    maps, decided = _loaded(map_), None if rule is None else load_rule(rule)
    setting = opened(model, data, inputs, device)
    names = [] if calibrators == "none" else separated(calibrators)
    held, notes = _held(setting, calibration, split, names)
    root = inputs.data_root
    material = material_of(
        setting, suite.corruptions, choice, split, held, root=root, limit=limit, seed=seed, batch=batch
    )
    choice, more = _completed(choice, setting, material, suite.outside, root)
    settings = _settings(setting, choice, material, made, model, split)
    subject = subject_of(setting, made, batch)
    settings["weights"] = subject.fingerprint()
    _check_classes(subject, material, setting, decided)
    against = None if reference is None else _reference(reference, choice, material)
    plan = planned(choice, calibration=material.calibration is not None)
    rehearsed(material, plan)
    folder = Folder.begin(out, settings)
    report = judged(
        subject,
        material,
        plan,
        folder,
        calibrators=names,
        maps=maps,
        rule=decided,
        reference=against,
        seed=seed if intervals else None,
        settings=folder.settings(),
        classes=setting.data.classes,
        progress=sys.stderr.isatty(),
    )
    said = [f"{c.name}: {text}" for c in plan if c.kind == "outside" and (text := folder.text(c.key))]
    report = replace(report, outcome=replace(report.outcome, notes=(*notes, *more, *said)))
    _told(report, folder, html, inputs_of(setting.data, setting.mean, setting.std), as_json)


def _check_classes(subject: Subject, material: Material, setting: Setting, rule: Rule | None) -> None:
    """The model answers with the classes of the data, about which the rule can decide."""
    from calibrant.diagnostics.stress.run import tried
    from calibrant.report.stress_rule import check_rule

    k = tried(subject, material, setting.first.name, setting.name)
    if k != setting.data.k:
        raise InputError(f"the model has {k} classes and {setting.name} has {setting.data.k}: not the same task")
    check_rule(rule, k)


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


def _completed(
    choice: Choice, setting: Setting, material: Material, outside: list[str] | None, root: Path | None
) -> tuple[Choice, list[str]]:
    """The types of a folder and the foreign sets that are usual for the data, where none were named."""
    from calibrant.data.ood import usual_ood

    notes: list[str] = []
    if material.corruptions is not None and "corruptions" in choice.suites:
        types = choice.types or material.corruptions.types
        for name in types:
            held = material.corruptions.severities(name)
            if set(choice.severities) - set(held):
                said = ",".join(map(str, held))
                raise InputError(f"{material.corruptions.path}: {name} has severities {said}; pass --severities {said}")
        choice = replace(choice, types=types)
    if "ood" in choice.suites:
        names, notes = (list(outside), []) if outside else usual_ood(setting.data, root)
        choice = replace(choice, outside=tuple(names))
        for name in choice.outside:  # an unknown name is refused before anything is written
            material.foreign(name)
    return choice, notes


def _settings(
    setting: Setting,
    choice: Choice,
    material: Material,
    made: Ensembled,
    models: list[str],
    split: str,
) -> dict[str, Any]:
    """Everything that decides what the cells hold; a folder begun with others is refused."""
    from calibrant.diagnostics.stress.material import content, digest

    held, calibration = material.corruptions, material.calibration
    return {
        "model": [Path(m).name if Path(m).is_dir() else m for m in models],
        "data": Path(setting.name).name if Path(setting.name).exists() else setting.name,
        "split": split,
        "n": material.part.n,
        "items": content(material.part),
        "suites": choice.suites,
        "types": choice.types if "corruptions" in choice.suites else [],
        "severities": choice.severities,
        "corruptions": "made here" if held is None else [held.path.name, held.content(choice.types)],
        "natural": [[Path(name).name, content(material.natural[name])] for name in choice.natural],
        "outside": [
            [name, digest(material.foreign(name).x)] if Path(name).exists() else name for name in choice.outside
        ],
        "ensemble": made.plain(),
        "calibration": None if calibration is None else [calibration.n, content(calibration)],
        "mean": setting.mean,
        "std": setting.std,
        "limit": material.limit,
        "seed": material.seed,
    }


def _reference(path: Path, choice: Choice, material: Material) -> dict[tuple[str, int], Arrays]:
    """The other model's cells, refused before anything is written where they show other items."""
    from calibrant.diagnostics.stress import Folder
    from calibrant.diagnostics.stress.run import same_items

    found = Folder.existing(path).corruptions(choice.types, choice.severities)
    same_items(material, found, str(path))
    return found


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
