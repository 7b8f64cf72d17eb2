"""What a stress run found, as an object and as text: means by severity, what breaks first, calibrators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from calibrant.diagnostics.stress import Outcome
from calibrant.diagnostics.stress.analysis import NO_CALIBRATOR, Broken
from calibrant.display import Rows, Shown, aligned
from calibrant.errors import InputError, unknown
from calibrant.report.numbers import percent, short
from calibrant.report.plots.shift import heatmap
from calibrant.report.stress_rule import RuleUnderShift
from calibrant.types import SCHEMA, Estimate, json_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("error", "nll", "ece", "auroc")
TITLES = {"accuracy": "Accuracy", "nll": "NLL", "ece": "ECE", "auroc": "AUROC"}


@dataclass(frozen=True)
class StressReport(Shown):
    """What a stress run found: `table()`, `plot(metric)`, `worst()`, `to_json()`."""

    outcome: Outcome
    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: RuleUnderShift | None = None

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
            self.values(metric), title=TITLES[metric], better="high" if high else "low", percent=metric != "nll", ax=ax
        )

    def table(self) -> str:
        """By severity, the means over types; then what breaks first, and what becomes of the rule."""
        return text(self.outcome) if self.rule is None else f"{text(self.outcome).rstrip()}\n\n{self.rule.text()}"

    def first_to_break(self) -> str:
        """One sentence: which shift breaks this model first."""
        return breaking(self.outcome)

    @property
    def verdict(self) -> str:
        """The finding in one sentence: which shift breaks this model first."""
        return self.first_to_break()

    def _shown(self) -> tuple[str, Rows]:
        return self.verdict, by_severity(self.outcome)

    def to_dict(self) -> dict[str, Any]:
        ruled = {} if self.rule is None else {"rule": self.rule.to_dict()}
        return {"schema": SCHEMA, "settings": dict(self.settings), **self.outcome.to_dict(), **ruled}

    def to_json(self, indent: int | None = 2) -> str:
        return json_text(self.to_dict(), indent)


def text(o: Outcome) -> str:
    """The whole table."""
    narrow = [[cell.replace(" [", " ").replace(", ", "…").rstrip("]") for cell in row] for row in by_severity(o)]
    lines = aligned(narrow, numbers=True)  # "6.0% 3.3…10.3" instead of "6.0% [3.3, 10.3]": four of them fit 80 columns
    if o.corruptions is not None:
        lines += [f"{name} {short(e)}" for name, e in o.corruptions.normalised.items()]
        lines += ["", breaking(o)]
    lines += _calibrated(o.calibrators)
    if o.perturbations:
        name, steady = min(o.perturbations.items(), key=lambda item: item[1]["consistency"].value or 0)
        lines.append(f"least steady along {name}: consistency {short(steady['consistency'])}")
    if o.frequency:
        at, left = min(o.frequency.items(), key=lambda item: item[1].value or 0.0)
        lines.append(f"least accurate with noise around frequency {at:.2g}π: accuracy {short(left)}")
    for name, report in o.ood.items():
        lines.append(f"{name}: AUROC of the entropy {short(report['entropy']['auroc'])}")
    for name, shifted in o.natural.items():
        lines.append(f"{name}: accuracy {short(shifted['accuracy'])}, ECE {short(shifted['ece'])}")
    return "\n".join(lines)


def by_severity(o: Outcome) -> list[tuple[str, ...]]:
    """Rows of text: the header, the clean items, then the mean over corruptions at each severity."""
    accuracy = o.clean["accuracy"].value
    clean = {name: Estimate(o.clean[name].value) for name in COLUMNS[1:]}
    rows: dict[str, Mapping[str, Estimate]] = {
        "clean": {"error": Estimate(None if accuracy is None else 1 - accuracy), **clean}
    }
    if o.corruptions is not None:
        rows |= {str(severity): row for severity, row in o.corruptions.by_severity.items()}
        if len(o.corruptions.by_severity) > 1:
            rows["mean"] = {name: e for name in COLUMNS if (e := o.corruptions.means.get(f"mean_{name}")) is not None}
    head = ("severity", *COLUMNS)
    return [head, *((title, *(short(row.get(n), n != "nll") for n in COLUMNS)) for title, row in rows.items())]


def breaking(o: Outcome) -> str:
    """One sentence: which shift breaks this model first."""
    if not o.broken or o.corruptions is None:
        return "no corruption was tried"
    worst = o.broken[0]
    name = worst.type.replace("_", " ")
    left = f"accuracy {100 * worst.accuracy:.1f}%, {100 * worst.loss:.1f} points below clean"
    if worst.severity is None:
        return f"No corruption breaks this model; {name} comes closest ({left})."
    if len(o.corruptions.by_severity) == 1:
        where = f"at severity {worst.severity}, the only one tried"
        return f"{name.capitalize()} hurts this model most: {where}, {left}."
    return f"{name.capitalize()} breaks this model first: at severity {worst.severity}, {left}."


def _calibrated(calibrators: Mapping[str, Mapping[int, Mapping[str, float | None]]]) -> list[str]:
    """ECE under each map: one column for clean, one for each severity."""
    if not calibrators:
        return []
    severities = list(next(iter(calibrators.values())))
    rows = [["ECE with", *("clean" if s == 0 else f"severity {s}" for s in severities)]]
    for name, by in calibrators.items():
        rows.append(["no map" if name == NO_CALIBRATOR else name, *(percent(by[s]["ece"]) for s in severities)])
    return ["", *aligned(rows, numbers=True), ""]
