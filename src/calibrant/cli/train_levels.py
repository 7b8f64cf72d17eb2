"""Audits an AR-AdaLS training beside its vanilla network: one table, and a report with calibration by robustness level.

Both networks are judged as trained and after temperature scaling. An improvement of the ECE that a single temperature
achieves as well is no merit of the training.
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


@dataclass(frozen=True)
class LevelsAudit:
    """The rows of the table, the record for JSON, and the HTML report."""

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


def audit_levels(out: Path, recipe: Recipe, how: How) -> LevelsAudit | None:
    """Write `out/report.html` and return the audit; None if the recipe uses no levels or has no vanilla network."""
    import calibrant.provenance as provenance
    from calibrant.metrics.compare import compare
    from calibrant.report import html
    from calibrant.report import robustness as section
    from calibrant.training import levels

    if recipe.selection is not None or not levels.are_needed(recipe):
        return None
    given = Path(how.levels) if how.levels is not None else None
    vanilla = out / levels.VANILLA if given is None else levels.attacked_run(given) or given
    found = levels.is_source(vanilla, out, how.network)
    if found and (vanilla / "train.safetensors").is_file():  # a folder of levels, without a network
        return None
    if not found or not (vanilla / "test.npz").is_file():
        source = levels.read_record(out)["from"]
        remedy = f"the levels came from {source}, relative to {out}; pass that with --levels"
        say(f"no audit beside vanilla: {remedy}", err=True)
        return None
    runs = {"vanilla": vanilla, "AR-AdaLS": out}
    tests = {name: files.read(run / "test.npz") for name, run in runs.items()}
    rows = [row for name, run in runs.items() for row in _judged(name, run, tests[name])]
    by_level, ruler = _by_level(tests, vanilla, out, recipe, how)
    targets = hashed.read(out / "targets.json")
    reports = dict(rows)
    page = html.write(
        out / "report.html",
        [html.Audit.of(p, reports[name], name) for name, p in tests.items()],
        comparisons=[compare(tests["vanilla"], tests["AR-AdaLS"], names=("vanilla", "AR-AdaLS"))],
        command=provenance.command(),
        panels=[section.levels_panel(by_level, ruler=ruler, attacked="the vanilla network", targets=targets)],
    )
    record = {
        "vanilla": str(vanilla),
        "report": str(page),
        "table": [{"predictor": n, **{m: e.value for m, e in r.items()}} for n, r in rows],
        "by_level": [each.to_dict() for each in by_level],
        "says": [section.lead(each) for each in by_level],
    }
    return LevelsAudit(record, rows, page)


def _judged(name: str, run: Path, test: Predictions) -> list[tuple[str, Report]]:
    """The report of a run's test predictions, as trained and after temperature scaling."""
    from calibrant.metrics.evaluate import evaluate
    from calibrant.posthoc.fit import fit

    out = [(name, evaluate(test))]
    if (run / "calibration.npz").is_file():
        fitted = fit("temperature", files.read(run / "calibration.npz"))
        out.append((f"{name} + temperature", evaluate(fitted.predictions(test), intervals=False)))
    return out


def _by_level(
    tests: dict[str, Predictions], vanilla: Path, out: Path, recipe: Recipe, how: How
) -> tuple[list[Any], str]:
    """Calibration of each predictor by robustness level, and the ruler. Distances are kept with the vanilla run."""
    from calibrant.attacks import levels as robustness_levels
    from calibrant.diagnostics.levels import calibration_by_level
    from calibrant.training import distances, levels
    from calibrant.training.run import data_of, make_fabric
    from calibrant.training.run_folder import load

    ruler = str(levels.target_option(recipe, "ruler"))
    members, data = load(vanilla).members, data_of(recipe, how)
    measured = distances.load_or_measure(
        members,
        data,
        Split.TEST,
        vanilla / distances.FOLDER,
        spare=out / distances.FOLDER / levels.VANILLA,
        ruler=ruler,
        device=make_fabric(recipe, how).device,
        progress=not how.quiet and sys.stderr.isatty(),
    )
    level = robustness_levels(
        measured.distance, min(int(levels.target_option(recipe, "levels")), len(measured.distance))
    )
    return [calibration_by_level(p, level, distance=measured.distance, name=n) for n, p in tests.items()], ruler
