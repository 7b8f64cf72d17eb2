"""After a training with levels of robustness: vanilla and AR-AdaLS audited side by side, with the levels in the report.

Both are judged as trained and after temperature scaling fitted on the calibration part, because a gain in ECE that one
parameter gives as well is no gain of the training.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant import files
from calibrant.cli.console import say
from calibrant.files import hashed
from calibrant.types import Predictions, Report, Split

if TYPE_CHECKING:
    from calibrant.training.recipe import Recipe
    from calibrant.training.run import How


def wanted(recipe: Recipe) -> bool:
    """Whether the targets of this recipe want levels (and there is one run, not a grid of them)."""
    from calibrant.training import levels

    return recipe.selection is None and levels.wanted(recipe)


@dataclass(frozen=True)
class Both:
    """The joint table, and where the report lies."""

    record: dict[str, Any]
    rows: list[tuple[str, Report]]
    page: Path

    def show(self) -> None:
        from calibrant.cli.layout import Console
        from calibrant.report import terminal

        console = Console(highlight=False)
        console.print("", terminal.joint_table(self.rows), sep="\n")
        for line in self.record["says"]:
            console.say(line)
        console.print()
        console.say(f"the report, for a browser:  {self.page}")


def audited(out: Path, recipe: Recipe, how: How) -> Both | None:
    """`out/report.html` and the joint table; None where the levels came without a network."""
    import calibrant.provenance as provenance
    from calibrant.metrics.compare import compare
    from calibrant.report import html
    from calibrant.report import robustness as section
    from calibrant.training import levels

    given = Path(how.levels) if how.levels is not None else None
    twin = out / levels.VANILLA if given is None else levels.attacked_run(given) or given
    there = levels.is_source(twin, out, how.network)
    if there and (twin / "train.safetensors").is_file():  # levels without a network
        return None
    if not there or not (twin / "test.npz").is_file():
        said = f"the levels came from {levels.read_record(out)['from']}, relative to {out}; pass that with --levels"
        say(f"no audit beside vanilla: {said}", err=True)
        return None
    runs = {"vanilla": twin, "AR-AdaLS": out}
    tests = {name: files.read(run / "test.npz") for name, run in runs.items()}
    rows = [row for name, run in runs.items() for row in _judged(name, run, tests[name])]
    found, ruler = _by_level(tests, twin, out, recipe, how)
    targets = hashed.read(out / "targets.json")
    reports = dict(rows)
    page = html.write(
        out / "report.html",
        [html.Audit.of(p, reports[name], name) for name, p in tests.items()],
        comparisons=[compare(tests["vanilla"], tests["AR-AdaLS"], names=("vanilla", "AR-AdaLS"))],
        command=provenance.command(),
        panels=[section.levels_panel(found, ruler=ruler, attacked="the vanilla network", targets=targets)],
    )
    record = {
        "vanilla": str(twin),
        "report": str(page),
        "table": [{"predictor": n, **{m: e.value for m, e in r.items()}} for n, r in rows],
        "by_level": [each.to_dict() for each in found],
        "says": [section.lead(each) for each in found],
    }
    return Both(record, rows, page)


def _judged(name: str, run: Path, test: Predictions) -> list[tuple[str, Report]]:
    from calibrant.metrics.evaluate import evaluate
    from calibrant.posthoc.fit import fit

    out = [(name, evaluate(test))]
    if (run / "calibration.npz").is_file():
        fitted = fit("temperature", files.read(run / "calibration.npz"))
        out.append((f"{name} + temperature", evaluate(fitted.predictions(test), intervals=False)))
    return out


def _by_level(tests: dict[str, Predictions], twin: Path, out: Path, recipe: Recipe, how: How) -> tuple[list[Any], str]:
    """The twin keeps its distances on test as it keeps the others."""
    from calibrant.attacks import levels as cut
    from calibrant.diagnostics.levels import calibration_by_level
    from calibrant.training import distances, levels
    from calibrant.training.run import data_of, make_fabric
    from calibrant.training.run_folder import load

    ruler = str(levels.option(recipe, "ruler"))
    members, data = load(twin).members, data_of(recipe, how)
    beside, own = twin / distances.FOLDER, out / distances.FOLDER / levels.VANILLA
    store = distances.choose_folder(members, data, [Split.TEST], beside, own, ruler=ruler)
    measured = distances.measured(
        members,
        data,
        Split.TEST,
        store,
        ruler=ruler,
        device=make_fabric(recipe, how).device,
        progress=not how.quiet and sys.stderr.isatty(),
    )
    level = cut(measured.distance, min(int(levels.option(recipe, "levels")), len(measured.distance)))
    return [calibration_by_level(p, level, distance=measured.distance, name=n) for n, p in tests.items()], ruler
