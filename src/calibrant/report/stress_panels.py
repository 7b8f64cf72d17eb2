"""A stress run as sections of the HTML report: heat maps, calibrators under shift, foreign items."""

from __future__ import annotations

from dataclasses import replace

from calibrant.diagnostics.stress import Outcome
from calibrant.report.panels import Figure, Panel
from calibrant.report.plots.shift import entropy_histograms, frequency_curve, severity_curves
from calibrant.report.stress_report import StressReport
from calibrant.report.stress_sections import called, sections

MAPS = (
    ("accuracy", "Accuracy, in percent: the stronger the red, the worse"),
    ("ece", "ECE, in percent: how far confidence is from accuracy"),
    ("nll", "Negative log-likelihood"),
    ("auroc", "AUROC, in percent: does confidence still rank errors below correct answers?"),
)


def panels(report: StressReport) -> list[Panel]:
    """Return the sections of this run, each with its figures."""
    o = report.outcome
    made = [replace(panel, figures=_figures(name, report)) for name, panel in sections(o).items()]
    made += [] if report.rule is None else [report.rule.panel()]
    general = [note for note in o.notes if note.split(":")[0] not in o.ood]  # the others are in their set's section
    return [replace(made[0], notes=(*made[0].notes, *general)), *made[1:]] if made else []


def _figures(section: str, report: StressReport) -> list[Figure]:
    o = report.outcome
    if section == "corruptions":
        return [Figure(report.plot(metric), caption) for metric, caption in MAPS]
    if section == "calibrators":
        several = len(next(iter(o.calibrators.values()))) > 1
        return [_curve(o, metric) for metric in ("ece", "nll")] if several else []
    if section == "ood":
        k = o.clean.k
        assert k is not None
        figure = entropy_histograms({name: e.numpy() for name, e in o.entropies.items()}, k)
        return [Figure(figure, "Entropy of familiar and foreign items; the further apart, the better", wide=True)]
    if section == "frequency":
        caption = "Accuracy under noise of one frequency (SS §2.2); dashed: without noise, shaded: 95% intervals"
        return [Figure(frequency_curve(o.frequency, o.clean["accuracy"].value or 0.0), caption)]
    return []


def _curve(o: Outcome, metric: str) -> Figure:
    lines = {called(name): {s: row[metric] for s, row in rows.items()} for name, rows in o.calibrators.items()}
    return Figure(
        severity_curves(lines, label=metric.upper(), percent=metric == "ece"), f"{metric.upper()} by severity"
    )
