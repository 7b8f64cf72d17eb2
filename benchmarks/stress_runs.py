"""Trained runs under shift, for a GPU: the 19 × 5 corruptions, foreign items, calibrators; cells in results' form.

    PYTHONPATH=src CALIBRANT_COMMIT=$(git rev-parse HEAD) \\
        python benchmarks/stress_runs.py RUN… --data-root DATA --store $OUT/results --keep runs/stress [--minutes 9]
    python benchmarks/stress_runs.py --pep-ood cifar_cnn --data-root DATA --store $OUT/results      # PEP §3.2

RUN is a folder that `calibrant train` wrote, or one that holds such folders. Every run gives one cell
PAPER/shift/RECIPE: clean, mean over corruptions, by severity and by type, as trained and after temperature scaling (and
PEP with --pep), and OOD detection of the usual foreign sets (CIFAR-100 for CIFAR-10). Logits stay under --keep, which
resumes; results hold numbers only. `--pep-ood` trains on five classes first and files pep/ood/NETWORK.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from calibrant.bench.store import Cell as ResultCell
from calibrant.bench.store import Store
from calibrant.data import Batches, load
from calibrant.data.ood import ood_images, usual_ood
from calibrant.diagnostics.stress import Choice, Folder, Material, Outcome, Subject, analyse, planned, run
from calibrant.diagnostics.stress.cells import Cell
from calibrant.diagnostics.stress.material import images_only, limited
from calibrant.ensembles.deep import DeepEnsemble
from calibrant.ensembles.pep import PEP
from calibrant.files.paths import visible
from calibrant.metrics.conventions import Resampling
from calibrant.papers import AS_TRAINED, experiments
from calibrant.report.stress import calibrator_maps
from calibrant.shifts import SUBSETS
from calibrant.training.environment import environment
from calibrant.training.recipe import Recipe, digest
from calibrant.training.recipes import RECIPES
from calibrant.training.run import How, train
from calibrant.training.run_folder import load as load_run
from calibrant.types import Estimate

NAMES = ("accuracy", "nll", "ece", "auroc")
Rows = dict[str, dict[str, Estimate]]


def runs_in(paths: list[Path]) -> Iterator[Path]:
    """Every run at or below these folders."""
    for path in paths:
        if (path / "recipe.json").is_file():
            yield path
        else:
            yield from (p.parent for p in visible(path, "**/recipe.json") if (p.parent / "data.json").is_file())


def rows_of(outcome: Outcome, prefix: str = "") -> Rows:
    """Variant → metric → estimate: clean, corruptions, severities, types, foreign sets."""
    out: Rows = {f"{prefix}clean": {n: outcome.clean[n] for n in NAMES}}
    found = outcome.corruptions
    if found is not None:
        out[f"{prefix}corruptions"] = {n.removeprefix("mean_"): e for n, e in found.means.items()}
        out |= {f"{prefix}severity_{s}": dict(row) for s, row in found.by_severity.items()}
        out |= {f"{prefix}type_{c}": dict(row) for c, row in found.by_type.items()}
    for name, report in outcome.ood.items():
        row = {f"{score}_{m}": e for score, metrics in report.scores.items() for m, e in metrics.items()}
        out[f"{prefix}ood_{name}"] = {k: e for k, e in row.items() if e.value is not None}
        out[f"{prefix}ood_{name}"]["entropy_kl"] = report.entropy_kl
    return out


def stressed(path: Path, a: argparse.Namespace, choice: Choice, pep: bool) -> tuple[Rows, dict[str, Any], Recipe]:
    """One run: as trained, after temperature scaling, and as PEP."""
    trained = load_run(path)
    data = load(
        trained.recipe.data.name, root=a.data_root, seed=trained.recipe.data.seed, sizes=trained.recipe.data.sizes
    )
    networks = [m.to(a.device) for m in trained.members]
    predictors: dict[str, Any] = {"": networks[0] if len(networks) == 1 else DeepEnsemble(networks)}
    extras: dict[str, Any] = {}
    if pep and len(networks) == 1:
        held = Batches(data["calibration"], 1000, device=a.device, mean=trained.mean, std=trained.std)
        fitted = PEP.fit(networks[0], held)
        extras["pep_sigma"] = fitted.sigma
        predictors["pep_"] = fitted
    part = limited(images_only(data["test"], data.name), a.limit)
    if "ood" in choice.suites:
        names, notes = usual_ood(data, a.data_root)
        if find_spec("sklearn") is None:  # a bare GPU machine
            names.remove("photographs")
            notes.append("photographs are left out: they come with scikit-learn, which is not here")
        choice, extras["notes"] = replace(choice, outside=tuple(names)), notes
    rows: Rows = {}
    for prefix, predictor in predictors.items():
        material = Material(
            part,
            data.shape,
            data["calibration"],
            outside=lambda name: ood_images(name, data.shape, n=part.n, root=a.data_root),
            batch=a.batch,
            device=a.device,
        )
        subject = Subject(predictor, trained.mean, trained.std, device=a.device)
        settings = {"weights": subject.fingerprint(), "limit": a.limit, "n": part.n, "choice": vars(choice)}
        folder = Folder.begin(_under(a.keep, f"{path.name}-{prefix or 'plain'}"), settings)
        cells = run(subject, material, planned(choice, calibration=True), folder)
        resampling = Resampling(0, a.replicates)
        rows |= rows_of(analyse(cells, raw=subject.raw, resampling=resampling), prefix)
        fixed = temperature(cells, subject.raw)
        rows |= rows_of(analyse(fixed, raw=False, resampling=resampling), f"{prefix}temperature_")
    return rows, extras, trained.recipe


def temperature(cells: Mapping[Cell, Any], raw: bool) -> dict[Cell, Any]:
    """The same cells after the temperature that was fitted on the clean calibration cell."""
    (fitted,) = calibrator_maps(cells, raw, ("temperature",)).values()
    kept = ("clean", "corruption", "outside")
    return {
        cell: {**{k: v for k, v in arrays.items() if k != "member_entropy"}, "logits": fitted(arrays["logits"])}
        for cell, arrays in cells.items()
        if cell.kind in kept
    }


def _under(keep: Path, name: str) -> Path:
    keep.mkdir(parents=True, exist_ok=True)
    return keep / name


def filed(
    a: argparse.Namespace,
    name: str,
    recipe: Recipe,
    rows: Rows,
    extras: Mapping[str, Any],
    reported: Any,
    seconds: float,
    said: str = "",
) -> None:
    """One result cell: values with intervals, no logits."""
    where = environment(a.device)
    scale, squeezed = scale_of(recipe, a)
    settings = {"recipe": recipe.plain(), "limit": a.limit, "types": a.types, "columns": sorted(rows)}
    cell = ResultCell(
        experiment=name,
        seed=recipe.seed,
        scale=scale,
        key=digest(settings),
        status="done",
        settings=settings,
        measured={v: {m: e.value for m, e in row.items()} for v, row in rows.items()},
        intervals={v: {m: (e.low, e.high) for m, e in row.items()} for v, row in rows.items()},
        reported=reported,
        note="; ".join(
            n for n in (squeezed, said, "shifts made by calibrant, items resampled jointly over cells") if n
        ),
        seconds=seconds,
        device=where["device"],
        environment=where,
        commit=where["commit"],
        command="python benchmarks/stress_runs.py",
        extras=extras,
    )
    print(Store(a.store).write(cell), f"{seconds:.0f} s", flush=True)


def scale_of(recipe: Recipe, a: argparse.Namespace) -> tuple[str, str]:
    """The scale to file under, and a word on it: a schedule that was squeezed is never filed as the paper's."""
    known = RECIPES.get(recipe.name)
    if known is None or known.epochs == recipe.epochs:
        return a.scale, ""
    scale = "small" if a.scale == "paper" else a.scale
    return scale, f"NOT the paper's schedule: {recipe.epochs} epochs instead of {known.epochs}"


def corruption_runs(a: argparse.Namespace) -> None:
    deadline = time.time() + 60 * a.minutes
    choice = Choice(("corruptions", "ood"), tuple(a.types), tuple(range(1, 6)))
    for path in runs_in(a.runs):
        if time.time() > deadline:
            print(f"out of time before {path}", flush=True)
            break
        start = time.perf_counter()
        rows, extras, recipe = stressed(path, a, choice, a.pep)
        paper, _, row = (recipe.name or f"own/{path.name}").partition("/")
        filed(a, f"{paper}/shift/{row or paper}", recipe, rows, extras, {}, time.perf_counter() - start)


def pep_ood(a: argparse.Namespace) -> None:
    """PEP §3.2: five classes; the symmetrised KL of entropies for the network, PEP and temperature scaling."""
    (experiment,) = experiments(f"pep/ood/{a.pep_ood}")
    if not experiment.reported and a.scale == "paper":  # another network than the paper's
        a.scale = "small"
    deadline = time.time() + 60 * a.minutes
    for seed in range(a.seeds):
        if time.time() > deadline:
            print(f"out of time before seed {seed}", flush=True)
            break
        recipe = replace(experiment.recipe, seed=seed)
        if a.epochs is not None:
            recipe = recipe.scaled(a.epochs)
        start = time.perf_counter()
        path = _under(a.keep, f"pep-ood-{a.pep_ood}-{seed}")
        train(recipe, path, How(device=a.device, root=a.data_root, quiet=True))
        rows, extras, _ = stressed(path, a, Choice(("ood",)), True)
        held = next(key for key in rows if key.startswith("ood_cifar10["))
        named = {AS_TRAINED: rows[held], "pep": rows[f"pep_{held}"], "temperature": rows[f"temperature_{held}"]}
        named |= {"pep_clean": rows["pep_clean"], "clean": rows["clean"]}
        took = time.perf_counter() - start
        filed(a, experiment.name, recipe, named, extras, experiment.reported, took, experiment.note)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--pep-ood", choices=["cifar_cnn", "wide_resnet28_10"])
    parser.add_argument("--pep", action="store_true", help="PEP as well, its σ fitted on the calibration split")
    parser.add_argument("--types", nargs="+", default=list(SUBSETS["19"]), choices=SUBSETS["19"], metavar="TYPE")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("--keep", type=Path, default=Path("runs/stress"), help="logits, resumable")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, help="fewer than the recipe's, its schedule squeezed")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--replicates", type=int, default=400)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--scale", default="paper", choices=["smoke", "small", "paper"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args(argv)
    if a.pep_ood is not None:
        pep_ood(a)
    if a.runs:
        corruption_runs(a)


if __name__ == "__main__":
    main()
