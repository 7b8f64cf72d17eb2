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

from calibrant.data.corruption_folder import corruption_folder
from calibrant.data.image_folder import read_part
from calibrant.data.ood import GENERATED, OODImages, ood_images
from calibrant.data.records import Part, numbered_classes
from calibrant.decisions import Rule
from calibrant.diagnostics.stress import Folder, Material, Subject
from calibrant.diagnostics.stress.material import limited, of_arrays
from calibrant.diagnostics.stress.run import count_classes
from calibrant.errors import InputError
from calibrant.posthoc.fit import resolve
from calibrant.posthoc.map import FittedMap
from calibrant.report.stress_report import StressReport
from calibrant.report.stress_rule import check_rule
from calibrant.report.stress_run import chosen, completed, stressed
from calibrant.types import Split

CALIBRATORS = ("temperature", "auto")
"""Fitted on clean calibration data, if `calibration` is given."""


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
    """Test a model (a module, a callable or an ensemble) on shifted images [N, C, H, W], uint8 or floats in [0, 1].

    `mean` and `std` (per channel) or `prepare` turn images in [0, 1] into the model's input. `corruptions` is a
    folder in the layout of CIFAR-C or ImageNet-C, instead of corruptions that are computed. `natural` holds
    re-collected sets, name → (images, labels), a file of both or a folder of classes; `outside_sets` holds foreign
    images by name, besides photographs and noise. `reference`, another model's `out`, adds mCE, mCNLL and mCECE.
    `calibration=(images, labels)`, clean and disjoint, shows how `calibrators` fitted on it do under shift, and
    `rule` does the same for a rule of `calibrant.decide`. `out` keeps the logits of every cell, so that a run can be
    resumed.
    """
    _check(calibrators if calibration is not None else (), limit=limit, batch=batch)
    subject = Subject(model, mean, std, prepare, torch.device(device) if device is not None else _home(model))
    foreign = {name: _foreign(name, x) for name, x in (outside_sets or {}).items()}
    part = limited(of_arrays(images, labels), limit)
    material = _material(part, calibration, foreign, limit=limit, seed=seed, batch=batch, device=subject.device)
    k = count_classes(subject, material, type(model).__name__, "these images")
    check_rule(rule, k)
    material = _with_own_shifts(material, natural or {}, corruptions, k)
    choice = chosen(suite, types, severities, list(material.natural), made_here=corruptions is None)
    report = stressed(
        subject,
        material,
        completed(choice, material, (*foreign, *GENERATED)),
        out=None if out is None else Path(out),
        settings={},
        calibrators=calibrators,
        maps=maps or {},
        rule=rule,
        reference=None if reference is None else Path(reference),
        seed=seed if intervals else None,
        progress=progress,
    )
    if out is not None:
        Folder(Path(out)).record(report.to_dict())
    return report


def _check(calibrators: Sequence[str], **numbers: int | None) -> None:
    """Refuse unknown calibrators and numbers below 1 before the model runs."""
    for name in calibrators:
        resolve(name, {})
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be 1 or more, not {value}")


def _material(
    part: Part, calibration: tuple[Any, Any] | None, foreign: Mapping[str, OODImages], *, seed: int, **options: Any
) -> Material:
    """Return the clean items, the calibration items and the foreign images, which are made when they are needed."""
    shape = tuple(part.x.shape[1:])
    return Material(
        part,
        shape,
        None if calibration is None else of_arrays(*calibration, split=Split.CALIBRATION),
        outside=lambda name: foreign.get(name) or ood_images(name, shape, n=part.n, seed=seed),
        seed=seed,
        **options,
    )


def _with_own_shifts(
    material: Material, natural: Mapping[str, Any], corruptions: str | Path | None, k: int
) -> Material:
    """Return the material with the user's own shifted sets; every label must be a class of the model."""
    sets = {name: _collected(given, k, material.shape) for name, given in natural.items()}
    _check_labels({"labels": material.part, "calibration": material.calibration, **sets}, k)
    folder = None if corruptions is None else corruption_folder(Path(corruptions), k, material.shape)
    return replace(material, corruptions=folder, natural=sets)


def _check_labels(parts: Mapping[str, Part | None], k: int) -> None:
    for name, part in parts.items():
        if part is not None and not 0 <= int(part.y.min()) <= int(part.y.max()) < k:
            raise InputError(f"{name}: labels are {int(part.y.min())} … {int(part.y.max())}, the model's 0 … {k - 1}")


def _collected(given: tuple[Any, Any] | str | Path, k: int, shape: tuple[int, ...]) -> Part:
    """Return a re-collected set from arrays, from a file of images and labels, or from a folder of numbered classes."""
    if not isinstance(given, str | Path):
        return of_arrays(*given)
    return read_part(Path(given), numbered_classes(k), shape)


def _foreign(name: str, x: Any) -> OODImages:
    return OODImages(name, of_arrays(x, torch.zeros(len(x), dtype=torch.long)).x, "")


def _home(model: Any) -> torch.device:
    networks = getattr(model, "models", None) or [getattr(model, "model", model)]
    for network in networks:
        if isinstance(network, nn.Module):
            for tensor in network.parameters():
                return tensor.device
    return torch.device("cpu")
