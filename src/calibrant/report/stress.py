"""`calibrant.stress(model, images, labels)`: a model under shift, in three lines of Python.

report = calibrant.stress(model, images, labels, mean=…, std=…)
print(report.table())
report.plot().figure.savefig("stress.png")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data.corruption_folder import CorruptionFolder, CorruptionImages, corruption_folder
from calibrant.data.image_folder import read_part
from calibrant.data.ood import GENERATED, OODImages, ood_images
from calibrant.data.records import Part, numbered_classes
from calibrant.decisions import Rule
from calibrant.diagnostics.stress import Choice, Folder, Material, Subject, planned
from calibrant.diagnostics.stress.cells import Cell, chosen_suites
from calibrant.diagnostics.stress.material import content, digest, limited, of_arrays
from calibrant.diagnostics.stress.run import rehearsed, same_items, tried
from calibrant.ensembles.ensemble import Ensemble
from calibrant.errors import InputError, unknown
from calibrant.posthoc.fit import resolve
from calibrant.posthoc.map import FittedMap
from calibrant.report.stress_report import StressReport, judged
from calibrant.report.stress_rule import check_rule
from calibrant.shifts import PERTURBATIONS, SHIFTS, SUBSETS
from calibrant.shifts.frequency import FREQUENCIES
from calibrant.types import Split

CALIBRATORS = ("temperature", "auto")
"""Fitted on clean calibration data where there is any."""


def stress(
    model: Any,
    images: Any,
    labels: Any,
    *,
    suite: str = "corruptions,ood",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    prepare: Callable[[Tensor], Tensor] | None = None,
    types: Sequence[str] | None = None,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    corruptions: str | Path | None = None,
    natural: Mapping[str, tuple[Any, Any] | str | Path] | None = None,
    outside_sets: Mapping[str, Any] | None = None,
    reference: str | Path | None = None,
    calibration: tuple[Any, Any] | None = None,
    calibrators: Sequence[str] = CALIBRATORS,
    maps: Mapping[str, FittedMap] | None = None,
    rule: Rule | None = None,
    out: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch: int = 500,
    device: torch.device | str | None = None,
    intervals: bool = True,
    progress: bool = False,
) -> StressReport:
    """Your model (a module, a callable or an ensemble) on your images [N, C, H, W], uint8 or floats in [0, 1].

    `mean` and `std` (per channel) or `prepare` turn images in [0, 1] into the model's input. `corruptions` is a folder
    in CIFAR-C's or ImageNet-C's layout, instead of those made here; `natural` are re-collected sets, name → (images,
    labels), a file of both or a folder of classes;
    `outside_sets` foreign images by name, besides photographs and noise. `reference`, another model's `out`, adds mCE,
    mCNLL and mCECE. `calibration=(images, labels)`, clean and disjoint, shows how `calibrators` fitted there fare under
    shift, and `rule` does the same for a rule of `calibrant.decide`. `out` keeps the logits of every cell, and resumes.
    """
    _check_numbers(limit=limit, batch=batch)
    for name in calibrators if calibration is not None else ():
        resolve(name, {})  # a wrong name is an error before the model runs
    part = limited(of_arrays(images, labels), limit)
    where = torch.device(device) if device is not None else _home(model)
    subject = Subject(model, mean, std, prepare, where)
    held = None if calibration is None else of_arrays(*calibration, split=Split.CALIBRATION)
    foreign = {name: _foreign(name, x) for name, x in (outside_sets or {}).items()}
    shape = tuple(part.x.shape[1:])
    k = tried(subject, Material(part, shape, device=where), type(model).__name__, "these images")
    check_rule(rule, k)
    sets = {name: _collected(given, k, shape) for name, given in (natural or {}).items()}
    _check_labels({"labels": part, "calibration": held, **sets}, k)
    files = None if corruptions is None else corruption_folder(Path(corruptions), k, shape)
    choice = _chosen(suite, types, severities, files, (*foreign, *GENERATED), tuple(sets))
    against = None if reference is None else Folder.existing(Path(reference))
    compared = None if against is None else against.corruptions(choice.types, choice.severities)
    material = Material(
        part,
        shape,
        held,
        files,
        natural=sets,
        limit=limit,
        outside=lambda name: foreign.get(name) or ood_images(name, shape, n=part.n, seed=seed),
        seed=seed,
        batch=batch,
        device=where,
    )
    plan = planned(choice, calibration=held is not None)
    rehearsed(material, plan)
    same_items(material, compared or {}, str(reference))
    settings = _settings(material, choice, subject, foreign) | {"mean": mean, "std": std}
    folder = None if out is None else Folder.begin(Path(out), settings)
    if folder is not None:
        _same_answers(subject, material, folder)
    report = judged(
        subject,
        material,
        plan,
        folder,
        calibrators=calibrators,
        maps=maps or {},
        rule=rule,
        reference=compared,
        seed=seed if intervals else None,
        settings=settings,
        progress=progress,
    )
    if folder is not None:
        folder.record(report.to_dict())
    return report


def _check_numbers(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be 1 or more, not {value}")


def _check_labels(parts: Mapping[str, Part | None], k: int) -> None:
    for name, part in parts.items():
        if part is not None and not 0 <= int(part.y.min()) <= int(part.y.max()) < k:
            raise InputError(f"{name}: labels are {int(part.y.min())} … {int(part.y.max())}, the model's 0 … {k - 1}")


def _settings(material: Material, choice: Choice, subject: Subject, foreign: Mapping[str, OODImages]) -> dict[str, Any]:
    """What the cells depend on: a folder of cells is resumed only with the same settings."""
    part, held, files = material.part, material.calibration, material.corruptions
    return {
        "items": content(part),
        "suites": choice.suites,
        "types": choice.types,
        "severities": choice.severities,
        "n": part.n,
        "corruptions": "made here" if files is None else files.content(choice.types),
        "natural": {name: content(one) for name, one in material.natural.items()},
        "outside": {name: digest(one.x) for name, one in foreign.items()},
        "calibration": None if held is None else [held.n, content(held)],
        "weights": subject.fingerprint(),
        "members": subject.members,
        "seed": material.seed,
        "limit": material.limit,
    }


def _chosen(
    suite: str,
    types: Sequence[str] | None,
    severities: Sequence[int],
    files: CorruptionFolder | CorruptionImages | None,
    outside: tuple[str, ...],
    natural: tuple[str, ...],
) -> Choice:
    """What was asked for, by name; wrong names are errors before the model runs."""
    suites = chosen_suites(suite)
    if natural and "natural" not in suites:
        suites = (*suites, "natural")
    if suites == ("natural",) and not natural:
        raise InputError("the suite 'natural' needs sets: natural={name: (images, labels)}")
    known = SUBSETS["19"] if files is None else files.types
    names = known if types is None else tuple(dict.fromkeys(types))
    if not names or not severities or any(s not in range(1, 6) for s in severities):
        raise InputError(f"types and severities in 1 … 5 are needed, got {list(names)} and {list(severities)}")
    for name in names:
        if files is None and name not in SHIFTS:
            raise unknown("corruption", name, SHIFTS)
        held = range(1, 6) if files is None else files.severities(name)
        if set(severities) - set(held):
            raise InputError(f"{name} has severities {', '.join(map(str, held))} there; pass severities=")
    return Choice(
        suites, names, tuple(dict.fromkeys(severities)), tuple(PERTURBATIONS)[:10], len(FREQUENCIES), outside, natural
    )


def _same_answers(subject: Subject, material: Material, folder: Folder) -> None:
    """Weights are hashed, but code is not: another function or `prepare` is found by its answers to the first items."""
    clean = Cell("clean")
    if clean.key not in folder or isinstance(subject.predictor, Ensemble):
        return
    few = replace(material, part=material.part.take(torch.arange(min(4, material.part.n)), material.part.split))
    now, before = subject.answer(lambda: few.batches(clean)).logits.double(), folder.read(clean.key)["logits"].double()
    before = before[: len(now)]
    if now.shape != before.shape or not torch.allclose(now, before, rtol=0.02, atol=0.02):
        raise InputError(f"{folder.path} was begun with a model that gives other answers; choose another folder")


def _collected(given: tuple[Any, Any] | str | Path, k: int, shape: tuple[int, ...]) -> Part:
    """A re-collected set from arrays, from a file of images and labels, or from a folder of numbered classes."""
    if not isinstance(given, str | Path):
        return of_arrays(*given)
    return read_part(Path(given), numbered_classes(k), shape)


def _foreign(name: str, x: Any) -> OODImages:
    return OODImages(name, of_arrays(x, torch.zeros(len(x), dtype=torch.long)).x, "as it is")


def _home(model: Any) -> torch.device:
    networks = getattr(model, "models", None) or [getattr(model, "model", model)]
    for network in networks:
        if isinstance(network, nn.Module):
            for tensor in network.parameters():
                return tensor.device
    return torch.device("cpu")
