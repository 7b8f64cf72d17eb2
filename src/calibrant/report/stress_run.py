"""A stress run from the choice of shifts to the report, for Python and the command line.

Everything that can be refused is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from calibrant.decisions import Rule
from calibrant.diagnostics.stress import Choice, Folder, Material, Subject, analyse, planned, run
from calibrant.diagnostics.stress.analysis import predictions_of
from calibrant.diagnostics.stress.cells import Cell, chosen_suites
from calibrant.diagnostics.stress.material import content, digest
from calibrant.diagnostics.stress.run import check_plan, check_same_items
from calibrant.diagnostics.stress.store import Arrays
from calibrant.ensembles.ensemble import Ensemble
from calibrant.errors import InputError, unknown
from calibrant.metrics.conventions import Resampling
from calibrant.posthoc.fit import fit
from calibrant.posthoc.map import FittedMap
from calibrant.report.stress_report import StressReport
from calibrant.report.stress_rule import RuleUnderShift
from calibrant.shifts import PERTURBATIONS, SHIFTS, SUBSETS
from calibrant.shifts.frequency import FREQUENCIES
from calibrant.types import Split


def chosen(
    suite: str,
    types: Sequence[str] | None,
    severities: Sequence[int],
    natural: Sequence[str],
    *,
    made_here: bool = True,
) -> Choice:
    """Return the chosen shifts by name. Types that are not `made_here` are those of a folder, by default all."""
    suites = chosen_suites(suite)
    if natural and "natural" not in suites:
        suites = (*suites, "natural")
    if suites == ("natural",) and not natural:
        raise InputError("the suite 'natural' needs sets: natural=, or --natural NAME, FILE.npz or FOLDER")
    if types is None:
        types = SUBSETS["19"] if made_here else ()
    elif not types:
        raise InputError("types is empty; pass names of corruptions, or leave it out")
    for name in types if made_here else ():
        if name not in SHIFTS:
            raise unknown("corruption", name, SHIFTS)
    levels = tuple(sorted(set(severities)))
    if not levels or levels[0] < 1 or levels[-1] > 5:
        raise InputError(f"severities lie in 1 … 5, not {', '.join(map(str, levels)) or 'nowhere'}")
    sequences = tuple(PERTURBATIONS)[:10]
    return Choice(suites, tuple(dict.fromkeys(types)), levels, sequences, len(FREQUENCIES), natural=tuple(natural))


def completed(choice: Choice, material: Material, outside: Sequence[str]) -> Choice:
    """Add the types and severities of a folder of corruptions, and the foreign sets; all of them must exist."""
    held = material.corruptions
    if held is not None and "corruptions" in choice.suites:
        choice = replace(choice, types=choice.types or tuple(held.types))
        for name in choice.types:
            has = held.severities(name)
            if set(choice.severities) - set(has):
                there = ",".join(map(str, has))
                remedy = f"pass --severities {there} (severities= in Python)"
                raise InputError(f"{held.path}: {name} has severities {there}; {remedy}")
    if "ood" in choice.suites:
        choice = replace(choice, outside=tuple(outside))
        for name in choice.outside:
            material.foreign(name)
    return choice


def stressed(
    subject: Subject,
    material: Material,
    choice: Choice,
    *,
    out: Path | None,
    settings: Mapping[str, Any],
    calibrators: Sequence[str],
    maps: Mapping[str, FittedMap],
    rule: Rule | None,
    reference: Path | None,
    seed: int | None,
    classes: tuple[str, ...] | None = None,
    progress: bool = False,
) -> StressReport:
    """Compute every cell, or read it if it is stored, and return the report. Without a seed there are no intervals.

    `settings` are further settings that the cells depend on. A folder that was begun with other settings is refused.
    """
    compared = {}
    if reference is not None:
        compared = Folder.existing(reference).corruptions(choice.types, choice.severities)
        check_same_items(material, compared, str(reference))
    plan = planned(choice, calibration=material.calibration is not None)
    check_plan(material, plan)
    settings = {**_settings(material, choice, subject), **settings}
    folder = None if out is None else Folder.begin(out, settings)
    if folder is not None:
        _same_answers(subject, material, folder)
        settings = folder.settings()
    cells = run(subject, material, plan, folder, progress=progress)
    outcome = analyse(
        cells,
        raw=subject.raw,
        classes=classes,
        maps=_fitted(cells, subject.raw, calibrators) | dict(maps) or None,
        reference=compared or None,
        resampling=None if seed is None else Resampling(seed),
    )
    fitting = tuple(f"{name}: {note}" for name in choice.outside if (note := material.foreign(name).note))
    outcome = replace(outcome, notes=(*outcome.notes, *fitting))
    return StressReport(outcome, settings, None if rule is None else RuleUnderShift.of(rule, cells, subject.raw))


def _settings(material: Material, choice: Choice, subject: Subject) -> dict[str, Any]:
    """Return the settings that the cells depend on, with the content of data, because names can be reused."""
    held, calibration = material.corruptions, material.calibration
    return {
        "items": content(material.part),
        "n": material.part.n,
        "suites": choice.suites,
        "types": choice.types if "corruptions" in choice.suites else [],
        "severities": choice.severities,
        "corruptions": "made here" if held is None else held.content(choice.types),
        "natural": [[Path(name).name, content(material.natural[name])] for name in choice.natural],
        "outside": [[Path(name).name, digest(material.foreign(name).x)] for name in choice.outside],
        "calibration": None if calibration is None else [calibration.n, content(calibration)],
        "weights": subject.fingerprint(),
        "members": subject.members,
        "mean": subject.mean,
        "std": subject.std,
        "seed": material.seed,
        "limit": material.limit,
    }


def _same_answers(subject: Subject, material: Material, folder: Folder) -> None:
    """Refuse a folder whose first items have other answers: weights are hashed, but code (`prepare`) is not."""
    clean = Cell("clean")
    if clean.key not in folder or isinstance(subject.predictor, Ensemble):
        return
    few = replace(material, part=material.part.take(torch.arange(min(4, material.part.n)), material.part.split))
    now, before = subject.answer(few.batches(clean)).logits.double(), folder.read(clean.key)["logits"].double()
    before = before[: len(now)]
    if now.shape != before.shape or not torch.allclose(now, before, rtol=0.02, atol=0.02):
        raise InputError(f"{folder.path} was begun with a model that gives other answers; choose another folder")


def _fitted(cells: Mapping[Cell, Arrays], raw: bool, names: Sequence[str]) -> dict[str, FittedMap]:
    """Return each calibrator fitted on the clean calibration cell, if there is one."""
    held = cells.get(Cell("calibration"))
    if held is None:
        return {}
    data = predictions_of(held, raw, None, Split.CALIBRATION)
    fitted = {name: fit(name, data) for name in names}
    return {f"auto ({m.record.calibrator})" if name == "auto" else name: m for name, m in fitted.items()}
