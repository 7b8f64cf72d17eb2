"""`calibrant.stress(model, images, labels)`: a model under shift, in three lines of Python.

report = calibrant.stress(model, images, labels, mean=…, std=…)
print(report.table())
report.plot().figure.savefig("stress.png")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from calibrant.data.outside import MADE, Outside, outside
from calibrant.data.shifted import CorruptionFolder
from calibrant.diagnostics.stress import Choice, Folder, Material, Outcome, Subject, analyse, planned, run
from calibrant.diagnostics.stress.analysis import AS_IT_IS, Broken, predictions_of
from calibrant.diagnostics.stress.cells import Cell, chosen_suites
from calibrant.diagnostics.stress.material import content, digest, limited, of_arrays
from calibrant.diagnostics.stress.store import Arrays
from calibrant.ensembles.ensemble import Ensemble
from calibrant.errors import InputError, unknown
from calibrant.metrics.conventions import Resampling
from calibrant.posthoc.fit import fit, resolve
from calibrant.posthoc.map import FittedMap
from calibrant.report.plots.heatmap import heatmap
from calibrant.shifts import PERTURBATIONS, SHIFTS, SUBSETS
from calibrant.shifts.frequency import FREQUENCIES
from calibrant.types import SCHEMA, Split, jsonable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CALIBRATORS = ("temperature", "auto")
"""Fitted on clean calibration data where there is any."""


@dataclass(frozen=True)
class StressReport:
    """What a stress run found: `table()`, `plot(metric)`, `worst()`, `to_json()`."""

    outcome: Outcome
    settings: Mapping[str, Any] = field(default_factory=dict)

    def worst(self) -> Broken | None:
        """The corruption that breaks the model first: at the lowest severity, then with the least accuracy left."""
        return self.outcome.broken[0] if self.outcome.broken else None

    def values(self, metric: str = "accuracy") -> dict[tuple[str, int], float | None]:
        """(type, severity) → value, with ("", 0) for clean."""
        if self.outcome.corruptions is None:
            raise InputError("this report has no corruptions; run the suite 'corruptions'")
        cells = self.outcome.corruptions.cells
        if metric not in next(iter(cells.values())):
            raise unknown("metric of a stress cell", metric, next(iter(cells.values())))
        clean = self.outcome.clean[metric].value
        return {("", 0): clean, **{key: row[metric] for key, row in cells.items()}}

    def plot(self, metric: str = "accuracy", *, ax: Axes | None = None) -> Axes:
        """The heat map type × severity of accuracy, nll, ece or auroc."""
        high = metric in ("accuracy", "auroc")
        return heatmap(
            self.values(metric), title=metric, better="high" if high else "low", percent=metric != "nll", ax=ax
        )

    def table(self) -> str:
        """By severity, the means over types; then what breaks first."""
        lines = [f"{'severity':<10}" + "".join(f"{name:>22}" for name in ("error", "nll", "ece", "auroc"))]
        clean = self.outcome.clean
        first = {"error": None if clean["accuracy"].value is None else 1 - clean["accuracy"].value}
        first |= {name: clean[name].value for name in ("nll", "ece", "auroc")}
        lines.append(f"{'clean':<10}" + "".join(f"{_number(first[n]):>22}" for n in first))
        if self.outcome.corruptions is not None:
            for severity, row in self.outcome.corruptions.by_severity.items():
                cells = (_estimate(row.get(name)) for name in ("error", "nll", "ece", "auroc"))
                lines.append(f"{severity:<10}" + "".join(f"{cell:>22}" for cell in cells))
            means = self.outcome.corruptions.means
            shown = (_estimate(means.get(f"mean_{name}")) for name in ("error", "nll", "ece", "auroc"))
            lines.append(f"{'mean':<10}" + "".join(f"{cell:>22}" for cell in shown))
            lines += [f"{name} {_estimate(e)}" for name, e in self.outcome.corruptions.normalised.items()]
            lines += ["", self.first_to_break()]
        for name, by_severity in self.outcome.calibrators.items():
            shown_ece = " ".join(f"{_number(row['ece']):>7}" for row in by_severity.values())
            lines.append(f"ECE, clean and by severity, with {name if name != AS_IT_IS else 'no map'}: {shown_ece}")
        if self.outcome.perturbations:
            least = min(self.outcome.perturbations.items(), key=lambda item: item[1]["consistency"].value or 0)
            lines.append(f"least steady along {least[0]}: consistency {_estimate(least[1]['consistency'])}")
        if self.outcome.frequency:
            at, left = min(self.outcome.frequency.items(), key=lambda item: item[1])
            lines.append(f"least accurate with noise around frequency {at:.2g}π: accuracy {_number(left)}")
        for name, report in self.outcome.ood.items():
            lines.append(f"{name}: AUROC of the entropy {_estimate(report['entropy']['auroc'])}")
        for name, shifted in self.outcome.natural.items():
            lines.append(f"{name}: accuracy {_estimate(shifted['accuracy'])}, ECE {_estimate(shifted['ece'])}")
        return "\n".join(lines)

    def first_to_break(self) -> str:
        """One sentence: which shift breaks this model first."""
        worst = self.worst()
        if worst is None:
            return "no corruption was tried"
        name = worst.type.replace("_", " ")
        left = f"accuracy {100 * worst.accuracy:.1f} %, {100 * worst.loss:.1f} points below clean"
        if worst.severity is None:
            return f"No corruption breaks this model; {name} comes closest ({left})."
        return f"{name.capitalize()} breaks this model first: at severity {worst.severity}, {left}."

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "settings": dict(self.settings), **self.outcome.to_dict()}

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(jsonable(self.to_dict()), indent=indent, ensure_ascii=False, allow_nan=False)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _estimate(e: Any) -> str:
    if e is None or e.value is None:
        return "–"
    return _number(e.value) if e.low is None else f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]"


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
    natural: Mapping[str, tuple[Any, Any]] | None = None,
    outside_sets: Mapping[str, Any] | None = None,
    reference: str | Path | None = None,
    calibration: tuple[Any, Any] | None = None,
    calibrators: Sequence[str] = CALIBRATORS,
    maps: Mapping[str, FittedMap] | None = None,
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
    in CIFAR-C's layout, instead of those made here; `natural` are re-collected sets, name → (images, labels);
    `outside_sets` foreign images by name, besides photographs and noise. `reference`, another model's `out`, adds mCE,
    mCNLL and mCECE. `calibration=(images, labels)`, clean and disjoint, shows how `calibrators` fitted there fare under
    shift. `out` keeps the logits of every cell, and resumes.
    """
    for name, value in (("limit", limit), ("batch", batch)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be 1 or more, not {value}")
    for name in calibrators if calibration is not None else ():
        resolve(name, {})
    part = limited(of_arrays(images, labels), limit)
    where = torch.device(device) if device is not None else _home(model)
    subject = Subject(model, mean, std, prepare, where)
    held = None if calibration is None else of_arrays(*calibration, split=Split.CALIBRATION)
    foreign = {name: _foreign(name, x) for name, x in (outside_sets or {}).items()}
    shape = tuple(part.x.shape[1:])
    sets = {name: of_arrays(*pair) for name, pair in (natural or {}).items()}
    files = None if corruptions is None else CorruptionFolder(Path(corruptions), 1 << 30, shape)
    choice = _chosen(suite, types, severities, files, (*foreign, *MADE), tuple(sets))
    against = None if reference is None else Folder.existing(Path(reference))
    compared = None if against is None else against.corruptions(choice.types, choice.severities)
    material = Material(
        part,
        shape,
        held,
        files,
        natural=sets,
        limit=limit,
        outside=lambda name: foreign.get(name) or outside(name, shape, n=part.n, seed=seed),
        seed=seed,
        batch=batch,
        device=where,
    )
    settings: dict[str, Any] = {
        "items": content(part),
        "suites": choice.suites,
        "types": choice.types,
        "severities": choice.severities,
        "n": part.n,
        "corruptions": "made here" if files is None else files.content(),
        "natural": {name: content(one) for name, one in sets.items()},
        "outside": {name: digest(one.x) for name, one in foreign.items()},
        "calibration": None if held is None else [held.n, content(held)],
        "mean": mean,
        "std": std,
    }
    settings |= {"weights": subject.fingerprint(), "members": subject.members, "seed": seed, "limit": limit}
    folder = None if out is None else Folder.begin(Path(out), settings)
    if folder is not None:
        _same_answers(subject, material, folder)
    cells = run(subject, material, planned(choice, calibration=held is not None), folder, progress=progress)
    fitted = dict(maps or {}) | calibrator_maps(cells, subject.raw, calibrators)
    resampling = Resampling(seed) if intervals else None
    outcome = analyse(cells, raw=subject.raw, maps=fitted or None, reference=compared, resampling=resampling)
    report = StressReport(outcome, settings)
    if folder is not None:
        folder.record(report.to_dict())
    return report


def _chosen(
    suite: str,
    types: Sequence[str] | None,
    severities: Sequence[int],
    files: CorruptionFolder | None,
    outside: tuple[str, ...],
    natural: tuple[str, ...],
) -> Choice:
    """What was asked for, by name, before the model is asked anything."""
    suites = chosen_suites(suite)
    if natural and "natural" not in suites:
        suites = (*suites, "natural")
    if suites == ("natural",) and not natural:
        raise InputError("the suite 'natural' needs sets: natural={name: (images, labels)}")
    known = SUBSETS["19"] if files is None else files.types
    names = known if types is None else tuple(types)
    if not names or not severities or any(s not in range(1, 6) for s in severities):
        raise InputError(f"types and severities in 1 … 5 are needed, got {list(names)} and {list(severities)}")
    for name in names:
        if files is None and name not in SHIFTS:
            raise unknown("corruption", name, SHIFTS)
        most = 5 if files is None else files.check(name)[1]
        if max(severities) > most:
            raise InputError(f"{name}.npy has severities 1 … {most}; say severities=")
    return Choice(suites, names, tuple(severities), tuple(PERTURBATIONS)[:10], len(FREQUENCIES), outside, natural)


def _same_answers(subject: Subject, material: Material, folder: Folder) -> None:
    """Weights are hashed, code is not: another function or `prepare` shows in what it says to the first items."""
    clean = Cell("clean")
    if clean.key not in folder or isinstance(subject.predictor, Ensemble):
        return
    few = replace(material, part=material.part.take(torch.arange(min(4, material.part.n)), material.part.split))
    now, before = subject.answer(lambda: few.batches(clean)).logits.double(), folder.read(clean.key)["logits"].double()
    before = before[: len(now)]
    if now.shape != before.shape or not torch.allclose(now, before, rtol=0.02, atol=0.02):
        raise InputError(f"{folder.path} was begun with a model that answers otherwise; choose another folder")


def calibrator_maps(cells: Mapping[Cell, Arrays], raw: bool, names: Sequence[str]) -> dict[str, FittedMap]:
    """Each calibrator fitted on the clean calibration cell; none where there is no such cell."""
    held = cells.get(Cell("calibration"))
    if held is None:
        return {}
    data = predictions_of(held, raw, None, Split.CALIBRATION)
    fitted = {name: fit(name, data) for name in names}
    return {f"auto ({m.record.calibrator})" if name == "auto" else name: m for name, m in fitted.items()}


def _foreign(name: str, x: Any) -> Outside:
    return Outside(name, of_arrays(x, torch.zeros(len(x), dtype=torch.long)).x, "as it is")


def _home(model: Any) -> torch.device:
    networks = getattr(model, "models", None) or [getattr(model, "model", model)]
    for network in networks:
        if isinstance(network, nn.Module):
            for tensor in network.parameters():
                return tensor.device
    return torch.device("cpu")


__all__ = ["CALIBRATORS", "StressReport", "calibrator_maps", "stress"]
