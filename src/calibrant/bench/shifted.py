"""A predictor under shift: corruptions, perturbations, foreign items and attacks, by the names in `shifts`.

    corruptions      19 types × 5 severities → variants `corruptions`, `intensity_1` … `intensity_5`; `corruptions_15`,
                     the mean over the benchmark's fifteen types; `by_type` in extras
    perturbations    the ten sequences of CIFAR-10-P (SS Eq. 37–39) → `perturbation_TYPE`; `perturbations`, their mean
    ood              the held-out classes → `entropy_kl` and AUROC in the predictor's own variant (PEP §3.2)
    ood:NAME         a foreign data set → variant `NAME` (AR §5.5)
    train            the training items, without augmentation → variant `train` (SS Table C.1)
    levels           the test items by their adversarial robustness (`robustness`)
    attack:NAME      `attack_NAME`: accuracy under attack and success rate, on the first items (SS Table E.2)

The code of `calibrant stress` computes the logits, cell by cell; they stay in the folder of the predict step.
Calibrators are fitted on clean data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.attacks import ATTACKS, Bounds, assess
from calibrant.attacks.measures import predicted
from calibrant.bench.ensembles import Loaded
from calibrant.bench.robustness import LEVELS
from calibrant.data import DATASETS, Batches
from calibrant.data import load as load_data
from calibrant.data.ood import GENERATED, ood_images
from calibrant.data.subsets import complement, split_name
from calibrant.diagnostics.stability import variance_over_runs
from calibrant.diagnostics.stress import Cell, Choice, Folder, Material, Outcome, Subject, analyse, planned, run
from calibrant.diagnostics.stress.material import images_only, limited
from calibrant.errors import InputError, unknown
from calibrant.functional.pooling import pool
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.ood import OODReport
from calibrant.papers import Experiment, Scale
from calibrant.posthoc.map import FittedMap
from calibrant.shifts import PERTURBATIONS, SUBSETS
from calibrant.types import Estimate, Split

CORRUPTIONS, PERTURBED, HELD_OUT, FOREIGN, ATTACK = "corruptions", "perturbations", "ood", "ood:", "attack:"
FIFTEEN = "corruptions_15"
TRAINING = Split.TRAIN.value
SEQUENCES = tuple(PERTURBATIONS)[:10]
"""The ten sequences of CIFAR-10-P; the other four are its extra ones."""
SMOKE_TYPES, ATTACKED, SMOKE_ATTACKED = 2, 1000, 32
RESAMPLING = Resampling(seed=0, replicates=400)

Arrays = dict[str, Tensor]
Rows = dict[str, dict[str, Estimate]]


@dataclass(frozen=True)
class Shifts:
    """The names in an experiment's shifts, sorted by kind."""

    datasets: tuple[str, ...]  # of the same task; `train` is one
    suites: tuple[str, ...]  # corruptions, perturbations, ood, ood:NAME
    attacks: tuple[str, ...]
    levels: bool

    @classmethod
    def of(cls, names: Sequence[str]) -> Shifts:
        """Sort the names; an unknown one is an error."""
        suites = [n for n in names if n in (CORRUPTIONS, PERTURBED, HELD_OUT) or n.startswith(FOREIGN)]
        attacks = [n.removeprefix(ATTACK) for n in names if n.startswith(ATTACK)]
        rest = [n for n in names if n not in (*suites, LEVELS) and not n.startswith(ATTACK)]
        foreign = [n.removeprefix(FOREIGN) for n in suites if n.startswith(FOREIGN)]
        for name in (*(n for n in rest if n != TRAINING), *(n for n in foreign if n not in GENERATED)):
            if split_name(name)[0] not in DATASETS:
                raise unknown("shift", name, [*DATASETS, TRAINING, CORRUPTIONS, PERTURBED, HELD_OUT, LEVELS])
        for name in attacks:
            if name not in ATTACKS:
                raise unknown("attack", name, ATTACKS)
        return cls(tuple(rest), tuple(suites), tuple(attacks), LEVELS in names)


def choice(suites: Sequence[str], data: str, root: Any, scale: Scale) -> Choice:
    """The cells of these suites; at smoke scale only two types."""
    count = SMOKE_TYPES if scale == "smoke" else None
    outside = [n.removeprefix(FOREIGN) for n in suites if n.startswith(FOREIGN)]
    if HELD_OUT in suites:
        held = complement(data, load_data(split_name(data)[0], root=root).classes)
        if held is None:
            raise InputError(f"{data} has no held-out classes; name a foreign set, as in ood:cifar100")
        outside.append(held)
    return Choice(
        (CORRUPTIONS, PERTURBED, HELD_OUT),
        types=SUBSETS["19"][:count] if CORRUPTIONS in suites else (),
        perturbations=SEQUENCES[:count] if PERTURBED in suites else (),
        outside=tuple(outside),
    )


def predict_cells(
    predictor: Any, suites: Sequence[str], loaded: Loaded, to: Path, root: str | Path | None, scale: Scale
) -> None:
    """Write the predictor's logits of every cell into a folder; those that are there already are not computed again."""
    data, trained, device = loaded.data, loaded.trained, loaded.device
    part = images_only(data[Split.TEST], data.name)
    material = Material(
        part,
        tuple(data.shape),
        outside=lambda name: ood_images(name, data.shape, n=part.n, root=root),
        device=device,
    )
    wanted = choice(suites, data.name, root, scale)
    subject = Subject(predictor, trained.mean, trained.std, device=device)
    run(subject, material, planned(wanted, calibration=False), Folder.begin(to, {"choice": vars(wanted)}))


def measure_attack(predictor: Any, name: str, loaded: Loaded, scale: Scale) -> dict[str, float | None]:
    """The accuracy and success rate of an attack with its default settings, on the first items of the test set."""
    data, trained = loaded.data, loaded.trained
    part = limited(images_only(data[Split.TEST], data.name), SMOKE_ATTACKED if scale == "smoke" else ATTACKED)
    batches = Batches(part, part.n, device=loaded.device, mean=trained.mean, std=trained.std)
    x, y, _ = next(iter(batches))
    attack = ATTACKS[name](bounds=Bounds(mean=trained.mean, std=trained.std))
    if not bool((predicted(predictor, attack, x).cpu() == y.cpu()).any()):  # after a smoke run, all may be wrong
        return {"accuracy": 0.0, "success_rate": None, "items": float(part.n)}
    found = assess(predictor, attack, x, y)
    return {"accuracy": found.accuracy_under_attack, "success_rate": found.success_rate, "items": float(part.n)}


def read(folders: Sequence[Path]) -> tuple[dict[Cell, Arrays], dict[Cell, Tensor]]:
    """The arrays of every cell, of one predictor or the pool of several; and a pool's members' logits [M, N, K]."""
    every = [Folder.existing(folder) for folder in folders]
    cells = planned(Choice(**{k: _tuple(v) for k, v in every[0].settings()["choice"].items()}), calibration=False)
    if len(every) == 1:
        return {cell: every[0].read(cell.key) for cell in cells}, {}
    each = {cell: [folder.read(cell.key) for folder in every] for cell in cells}
    members = {cell: torch.stack([a["logits"] for a in arrays]) for cell, arrays in each.items()}
    return {c: {**each[c][0], "logits": pool(members[c])} for c in cells}, members


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def rows(
    cells: Mapping[Cell, Arrays], *, raw: bool, fitted: FittedMap | None = None, against: Path | None = None
) -> tuple[Rows, dict[str, Any]]:
    """Variant → metric → estimate, after a calibrator if one is given; `against` is the reference network's folder."""
    if fitted is not None:
        kept = {c: a for c, a in cells.items() if c.kind in ("clean", "corruption", "outside")}
        cells = {c: {**a, "logits": fitted(a["logits"])} for c, a in kept.items()}
        cells = {c: {k: v for k, v in a.items() if k != "member_entropy"} for c, a in cells.items()}
    other = None if against is None else read([against])[0]
    reference = None if other is None else {(c.name, c.severity): a for c, a in other.items() if c.kind == "corruption"}
    found = analyse(cells, raw=raw and fitted is None, reference=reference, resampling=RESAMPLING)
    return _named(found), {} if found.corruptions is None or fitted is not None else {"by_type": _values(found)}


def _named(outcome: Outcome) -> Rows:
    out: Rows = {}
    if (found := outcome.corruptions) is not None:
        out[CORRUPTIONS] = _with_accuracy({n.removeprefix("mean_"): e for n, e in found.means.items()}) | dict(
            found.normalised
        )
        out |= {f"intensity_{s}": _with_accuracy(row) for s, row in found.by_severity.items()}
        main = [_with_accuracy(found.by_type[name]) for name in SUBSETS["15"] if name in found.by_type]
        out[FIFTEEN] = {m: _mean([row[m].value for row in main]) for m in main[0]}
    if steady := outcome.perturbations:
        out |= {f"perturbation_{name}": dict(row) for name, row in steady.items()}
        out[PERTURBED] = {m: _mean([row[m].value for row in steady.values()]) for m in next(iter(steady.values()))}
    for name, report in outcome.ood.items():
        out[HELD_OUT if "[" in name else name] = _detection(report)
    return out


def _mean(values: Sequence[float | None]) -> Estimate:
    known = [v for v in values if v is not None]
    return Estimate(math.fsum(known) / len(known) if known else None)


def _with_accuracy(row: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Replace the error by the accuracy, as in the tables."""
    out = dict(row)
    if (wrong := out.pop("error", None)) is not None:
        low, high = (None if v is None else 1 - v for v in (wrong.high, wrong.low))
        out["accuracy"] = Estimate(None if wrong.value is None else 1 - wrong.value, low, high)
    return out


def _detection(report: OODReport) -> dict[str, Estimate]:
    by = {"entropy": "entropy", "confidence": "max_probability"}
    found = {f"{m}_{word}": report.scores[score][m] for word, score in by.items() for m in ("auroc", "fpr95")}
    return {**found, "entropy_kl": report.entropy_kl}


def _values(outcome: Outcome) -> dict[str, Any]:
    assert outcome.corruptions is not None
    return {c: {m: e.value for m, e in _with_accuracy(row).items()} for c, row in outcome.corruptions.by_type.items()}


def variances(members: Mapping[Cell, Tensor], cells: Mapping[Cell, Arrays]) -> dict[str, dict[str, float]]:
    """The variance over the runs of a pool, averaged over items and corruptions (AR §3.1)."""
    by: dict[str, list[float]] = {}
    for cell in (c for c in members if c.kind == "corruption"):
        found = float(variance_over_runs(members[cell], cells[cell]["labels"]).mean())
        for name in (CORRUPTIONS, f"intensity_{cell.severity}"):
            by.setdefault(name, []).append(found)
    return {name: {"variance": sum(each) / len(each)} for name, each in by.items()}


def check(experiment: Experiment) -> None:
    """Refuse an experiment that cannot be measured, before anything is trained."""
    asked = Shifts.of(experiment.shifts)
    if experiment.pool > 1 and (experiment.ensembles or asked.attacks or asked.datasets or asked.levels):
        raise InputError(
            f"{experiment.name}: a pool of trainings has no ensembles, attacks, levels or other data sets of its own"
        )
