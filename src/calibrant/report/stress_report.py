"""The result of a stress run, as an object and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from calibrant.diagnostics.stress import Outcome
from calibrant.diagnostics.stress.analysis import Broken
from calibrant.display import Rows, Shown, aligned
from calibrant.errors import InputError, unknown
from calibrant.report.numbers import short
from calibrant.report.panels import Figure, Panel
from calibrant.report.plots.shift import entropy_histograms, frequency_curve, heatmap, severity_curves
from calibrant.report.stress_rule import RuleUnderShift
from calibrant.report.stress_sections import breaking, by_severity, called, sections
from calibrant.types import SCHEMA, json_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {"accuracy": "Accuracy", "nll": "NLL", "ece": "ECE", "auroc": "AUROC"}
MAPS = {
    "accuracy": "Accuracy, in percent: the stronger the red, the worse",
    "ece": "ECE, in percent: how far confidence is from accuracy",
    "nll": "Negative log-likelihood",
    "auroc": "AUROC, in percent: does confidence still rank errors below correct answers?",
}
"""Metric → the caption of its heat map in the HTML report."""


@dataclass(frozen=True)
class StressReport(Shown):
    """The result of a stress run: `table()`, `plot(metric)`, `worst()`, `to_json()`."""

    outcome: Outcome
    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: RuleUnderShift | None = None

    def worst(self) -> Broken | None:
        """Return the corruption that breaks the model first: at the lowest severity, with the least accuracy left."""
        return self.outcome.broken[0] if self.outcome.broken else None

    def values(self, metric: str = "accuracy") -> dict[tuple[str, int], float | None]:
        """Return the value of a metric for each (type, severity), with ("", 0) for clean."""
        if self.outcome.corruptions is None:
            raise InputError("this report has no corruptions; run the suite 'corruptions'")
        cells = self.outcome.corruptions.cells
        if metric not in next(iter(cells.values())):
            raise unknown("metric of a stress cell", metric, next(iter(cells.values())))
        clean = self.outcome.clean[metric].value
        return {("", 0): clean, **{key: row[metric] for key, row in cells.items()}}

    def plot(self, metric: str = "accuracy", *, ax: Axes | None = None) -> Axes:
        """Draw the heat map type × severity of accuracy, nll, ece or auroc."""
        high = metric in ("accuracy", "auroc")
        return heatmap(
            self.values(metric), title=TITLES[metric], better="high" if high else "low", percent=metric != "nll", ax=ax
        )

    def table(self) -> str:
        """Return the means over types by severity, the findings in sentences, and what becomes of the rule."""
        return text(self.outcome) if self.rule is None else f"{text(self.outcome).rstrip()}\n\n{self.rule.text()}"

    def panels(self) -> list[Panel]:
        """Return the sections of the HTML report, each with its figures."""
        o = self.outcome
        made = [replace(panel, figures=self._figures(name)) for name, panel in sections(o).items()]
        made += [] if self.rule is None else [self.rule.panel()]
        general = [note for note in o.notes if note.split(":")[0] not in o.ood]  # the others are in their set's section
        return [replace(made[0], notes=(*made[0].notes, *general)), *made[1:]] if made else []

    def _figures(self, section: str) -> list[Figure]:
        o = self.outcome
        if section == "corruptions":
            return [Figure(self.plot(metric), caption) for metric, caption in MAPS.items()]
        if section == "calibrators" and len(next(iter(o.calibrators.values()))) > 1:  # several severities
            return [_curves(o, "ece"), _curves(o, "nll")]
        if section == "ood":
            assert o.clean.k is not None
            figure = entropy_histograms({name: e.numpy() for name, e in o.entropies.items()}, o.clean.k)
            return [Figure(figure, "Entropy of familiar and foreign items; the further apart, the better", wide=True)]
        if section == "frequency":
            caption = "Accuracy under noise of one frequency (SS §2.2); dashed: without noise, shaded: 95% intervals"
            return [Figure(frequency_curve(o.frequency, o.clean["accuracy"].value or 0.0), caption)]
        return []

    @property
    def verdict(self) -> str:
        """Which shift breaks this model first, in one sentence."""
        return breaking(self.outcome)

    def _shown(self) -> tuple[str, Rows]:
        return self.verdict, by_severity(self.outcome)

    def to_dict(self) -> dict[str, Any]:
        ruled = {} if self.rule is None else {"rule": self.rule.to_dict()}
        return {"schema": SCHEMA, "settings": dict(self.settings), **self.outcome.to_dict(), **ruled}

    def to_json(self, indent: int | None = 2) -> str:
        return json_text(self.to_dict(), indent)


def _curves(o: Outcome, metric: str) -> Figure:
    """Return the curves of a metric over the severities, one for each calibrator."""
    lines = {called(name): {s: row[metric] for s, row in rows.items()} for name, rows in o.calibrators.items()}
    title = TITLES[metric]
    return Figure(severity_curves(lines, label=title, percent=metric == "ece"), f"{title} by severity")


def text(o: Outcome) -> str:
    """Return the means by severity, the lead of each section, and the ECE under each calibrator."""
    narrow = [[cell.replace(" [", " ").replace(", ", "…").rstrip("]") for cell in row] for row in by_severity(o)]
    lines = aligned(narrow, numbers=True)  # "6.0% 3.3…10.3" instead of "6.0% [3.3, 10.3]": four of them fit 80 columns
    if o.corruptions is not None:
        lines += [f"{name} {short(e)}" for name, e in o.corruptions.normalised.items()]
    for name, section in sections(o).items():
        lines += ["", *wrap(section.lead, 80)]
        if name == "calibrators":
            lines += aligned([section.tables[0].head, *section.tables[0].rows], numbers=True)
    return "\n".join(lines)
