"""Numbers that `ar_measure` left → cells in results' form, with levels (AR Fig. 1 and 2), and one table to read.

    ar/table3/METHOD, ar/figure5/levels_R      a run each
    ar/table3/ensemble_of_METHOD               a pool of three runs; of five, where there are as many, in its extras
    ar/table5/METHOD                           variance over all runs of the method, by level too
    ar/ood/cifar10_METHOD                      §5.5's AUROC, on ResNet-29 v2

Pools and variances join runs, so there is one of each: a *single run* as far as methods are compared.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.ar_measure import TEMPERATURE, read
from benchmarks.ar_table import table
from benchmarks.ar_units import SMOKE_LEVELS, Unit, name_of, schedule_note
from benchmarks.smoothing_pack import packed
from calibrant import files
from calibrant.attacks import levels as cut
from calibrant.bench.store import Cell, Store
from calibrant.diagnostics.levels import calibration_by_level
from calibrant.errors import InputError
from calibrant.papers import Experiment, experiments
from calibrant.papers.ar import MEMBERS, OOD, SECTION55, TABLE5
from calibrant.papers.experiment import scale_of
from calibrant.training import distances
from calibrant.training.environment import device_name, environment
from calibrant.training.recipe import digest
from calibrant.types import Predictions

TYPE = "type_"
"""Of the names of rows by corruption: too many to head a table, so they go into a cell's extras."""
WRN, BEFOREHAND = "ResNet-29 v2 instead of WRN-28-10", ", levels pre-computed instead of on the fly"


@dataclass(frozen=True)
class Filing:
    """What all cells of a call share."""

    store: Store
    a: argparse.Namespace
    where: Mapping[str, Any]  # the environment
    level: Tensor | None  # of the test items
    distance: Tensor | None


def file_all(units: Sequence[Unit], a: argparse.Namespace) -> list[Cell]:
    """Cells of everything that is measured, anew into runs/…-store; packed into --out with the table and the log."""
    from benchmarks.ar_runs import say

    measured = [u for u in units if u.what == "measure" and u.done()]
    if not measured:
        say(a, "nothing is done yet")
        return []
    store = Store(a.runs / ("smoke-store" if a.smoke else "ar-store"))
    shutil.rmtree(store.root, ignore_errors=True)  # pools of fewer runs, of an earlier call
    attacks = [u for u in units if u.what == "attack" and u.done()]
    level, distance = test_levels(attacks[0], a) if attacks else (None, None)
    filing = Filing(store, a, environment(a.device), level, distance)
    out = [cell for unit in measured for cell in _of_run(unit, filing)]
    for unit in (u for u in units if u.what == "pool" and u.done()):
        out += _of_pool(unit, units, filing)
    text = table(out)
    waiting = [u.name for u in units if not u.done()]
    say(a, f"{len(out)} cells; not done: {', '.join(waiting) or 'nothing'}\n{text}")
    if a.out is not None:
        packed(store, a.out)
        (a.out / "table.txt").write_text(text + "\n", "utf-8")
        shutil.copy(a.runs / "ar-log.txt", a.out / "log.txt")
        if attacks:
            found = {p.stem: distances.read(p).distance.float().numpy() for p in attacks[0].files()}
            np.savez_compressed(a.out / "robustness.npz", **found)  # type: ignore[arg-type]
    return out


def test_levels(attack: Unit, a: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Ten levels of the test items, by the first vanilla run's robustness."""
    found = distances.read(attack.files()[-1])
    if read(attack.run, "test").ids != tuple(str(i) for i in found.index.tolist()):
        raise InputError(f"{attack.files()[-1]} is not of the items of {attack.run}/test.npz; delete it and run again")
    return cut(found.distance, SMOKE_LEVELS if a.smoke else 10), found.distance


def _of_run(unit: Unit, filing: Filing) -> list[Cell]:
    record, test = _numbers(unit.path), read(unit.run, "test")
    extras: dict[str, Any] = {"by_level": by_level([test], filing), **_remarks(record)}
    targets = unit.run / "targets.json"
    if targets.is_file():  # where ε_r ended, and by which way
        path = _numbers(targets)["epsilon"]
        extras["epsilon"] = path[-1]
        if unit.recipe.targets.name == "ar_adals":
            extras["epsilon_by_epoch"] = [[round(e, 4) for e in row] for row in path]
    cell = _filed(name_of(unit.method), [unit.run], unit, record, extras, filing, test)
    if unit.method not in SECTION55 or OOD not in record["values"]:
        return [cell]
    keys = (OOD, f"{TEMPERATURE}_{OOD}")
    part = {k: {v: record[k][v] for v in keys} for k in ("values", "intervals")}
    said = WRN + (BEFOREHAND if unit.recipe.targets.name == "ar_adals" else "")
    return [cell, _filed(f"ar/ood/cifar10_{unit.method}", [unit.run], unit, part, _remarks(record), filing, also=said)]


def _of_pool(unit: Unit, units: Sequence[Unit], filing: Filing) -> list[Cell]:
    """The smallest pool is filed as the ensemble; the largest as the variance."""
    sizes = [u for u in units if u.what == "pool" and u.method == unit.method and u.done()]
    record = _numbers(unit.path)
    out = []
    if len(unit.pooled) == min(len(u.pooled) for u in sizes):
        pooled = _pooled(unit)
        extras = {"by_level": by_level([pooled], filing), **_remarks(record)}
        for larger in sizes:
            if larger is not unit:
                extras[f"pool_of_{len(larger.pooled)}"] = _numbers(larger.path)["values"]
        words = f"pool of {len(unit.pooled)} runs" + (
            "" if len(unit.pooled) == MEMBERS else f", {MEMBERS} in the paper"
        )
        name = f"ar/table3/ensemble_of_{unit.method}"
        out.append(_filed(name, unit.pooled, unit, record, extras, filing, also=f"{words}; one pool: a single run"))
    if unit.method in TABLE5 and len(unit.pooled) == max(len(u.pooled) for u in sizes):
        rows = by_level([read(run, "test") for run in unit.pooled], filing)
        part = {"values": record["variance"], "intervals": {}}
        words = f"variance over {len(unit.pooled)} runs"
        out.append(_filed(f"ar/table5/{unit.method}", unit.pooled, unit, part, {"by_level": rows}, filing, also=words))
    return out


def _pooled(unit: Unit) -> Predictions:
    from benchmarks.ar_measure import joined

    return joined([read(run, "test") for run in unit.pooled])


def by_level(runs: list[Predictions], filing: Filing) -> dict[str, Any] | None:
    """Fig. 1 and 2: with several runs also the variance, of the true class and over all classes."""
    if filing.level is None:
        return None
    made = calibration_by_level(runs, filing.level, distance=filing.distance, intervals=False).to_dict()
    if len(runs) > 1:
        also = calibration_by_level(runs, filing.level, of="classes", intervals=False)
        made["variance_of_all_classes"] = [row.variance.value for row in also.rows if row.variance is not None]
    return made


def _numbers(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def _remarks(record: Mapping[str, Any]) -> dict[str, Any]:
    known = {"temperature": record["temperature"], "corrupted_sets": record["sets"]}
    return known | {k: record[k] for k in ("entropy_histogram",) if k in record}


def _filed(
    name: str,
    runs: Sequence[Path],
    unit: Unit,
    record: Mapping[str, Any],
    extras: Mapping[str, Any],
    filing: Filing,
    test: Predictions | None = None,
    also: str = "",
) -> Cell:
    """Write a cell; of several runs, the settings name all of them and the seed is 0."""
    a = filing.a
    experiment: Experiment = replace(experiments(name)[0], recipe=unit.recipe)
    schedule = schedule_note(a, unit.method)
    scale = scale_of(unit.recipe, experiments(name)[0].recipe)
    settings = experiment.settings(unit.seed, "paper") | {"shift_items": a.shift_items}
    if "/table5/" in name:
        settings |= {"measures": "variance over runs"}
    if len(runs) > 1:
        settings |= {"pooled": [run.name for run in runs]}
    trained = [_numbers(run / "metrics.json") for run in runs]
    shifted = "" if a.shift_items is None else f"corruptions on the first {a.shift_items} test images"
    headed = {v: row for v, row in record["values"].items() if TYPE not in v}
    by_type = {v.replace(TYPE, ""): row for v, row in record["values"].items() if TYPE in v}
    cell = Cell(
        experiment=name,
        seed=unit.seed,
        scale=scale,
        key=digest(settings),
        status="done",
        settings=settings,
        measured=headed,
        intervals={v: {m: tuple(b) for m, b in row.items()} for v, row in record["intervals"].items() if row},
        reported=experiment.reported,
        note="; ".join(n for n in (schedule, also, experiment.note, shifted) if n),
        seconds=sum(r["train_seconds"] for r in trained),
        device=device_name(a.device),
        environment=filing.where,
        commit=filing.where["commit"],
        command=command(a),
        extras={
            **extras,
            **({"by_type": by_type} if by_type else {}),
            "runs": len(runs),
            "images_per_second": trained[0]["images_per_second"],
        },
    )
    filing.store.write(cell)
    if test is not None and a.keep_logits:
        files.write(filing.store.logits(unit.recipe.key(), "test"), test)
    return cell


def command(a: argparse.Namespace) -> str:
    """What makes these numbers again; how many at a time and for how long does not matter."""
    words = [f"--{n.replace('_', '-')} {v}" for n in ("epochs", "batch", "pgd", "shift_items") if (v := getattr(a, n))]
    words += [f"--members {a.members}"] if a.members != MEMBERS else []
    words += ["--smoke" if a.smoke else "", f"--set {' '.join(a.set)}" if a.set else ""]
    return " ".join(["python benchmarks/ar_runs.py", *(w for w in words if w)])
