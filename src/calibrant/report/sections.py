"""The section of one file in the report: its numbers, figures and tables, and what cannot be shown, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.functional.binomial import wilson
from calibrant.metrics.stream_report import bounds_line
from calibrant.report import plots
from calibrant.report.classes import ClassTable, Mistake, class_table, mistakes
from calibrant.report.explain import details
from calibrant.report.numbers import percent, sentence
from calibrant.report.operating import OperatingPoints, effective_share, operating_points
from calibrant.report.panels import Panel
from calibrant.report.plots.style import SERIES
from calibrant.report.plots.svg import to_svg
from calibrant.report.steps import Step, next_steps
from calibrant.report.verdict import Verdict, judge, test_p
from calibrant.types import Report

if TYPE_CHECKING:
    from calibrant.posthoc.advise import Advice
    from calibrant.report.html import Audit

GOALS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


@dataclass(frozen=True)
class Section:
    key: str
    name: str
    report: Report
    audit: Audit
    verdict: Verdict
    says: float | None  # mean confidence
    right: float | None  # what it should equal
    p: float | None  # of the calibration test
    figures: dict[str, Any]
    points: dict[str, Any] | None  # for the slider
    start: dict[str, Any]  # what the slider shows at first
    classes: ClassTable | None
    mistakes: list[Mistake] | None
    has_ids: bool
    steps: list[Step]
    details: list[Panel]
    missing: list[str]  # what cannot be shown, in words


def section(i: int, audit: Audit, change: tuple[Audit, Audit] | None = None, advice: Advice | None = None) -> Section:
    """The section of one file. `change`: the items on which a recalibration is judged, before it and after it."""
    report, scores = audit.report, audit.scores
    key, missing = f"f{i}", []
    accuracy, gap = (getattr(report.metrics.get(n), "value", None) for n in ("accuracy", "gap"))
    top = report.conventions.get("about", "top label") == "top label"
    points = None
    if scores is None:
        missing.append(
            "These predictions were streamed, so only sums were kept. Density, thresholds, "
            "classes and single mistakes need the items; to see them, audit a part that fits into memory."
        )
        if (bounds := bounds_line(report)) is not None:
            missing.append(sentence(bounds))
    elif top:
        points = operating_points(scores)
    else:
        missing.append(
            "This audit is about the probability of the positive class; thresholds on the predicted label are in an "
            "audit about the top label."
        )
    if scores is not None and scores.classwise is None:
        missing.append(
            "The file holds one confidence per item and no probabilities of the other classes, so numbers that need "
            "them (NLL, Brier, classwise ECE) do not exist."
        )
    ids = None if audit.predictions is None else audit.predictions.ids
    return Section(
        key=key,
        name=audit.name,
        report=report,
        audit=audit,
        verdict=judge(report),
        says=None if accuracy is None or gap is None or not top else accuracy + gap,
        right=accuracy,
        p=test_p(report),
        figures=_figures(key, audit, change, top),
        points=None if points is None else _embedded(points),
        start={} if points is None else _start(points, accuracy),
        classes=None if scores is None else class_table(scores, _classes(audit)),
        mistakes=None if scores is None else mistakes(scores, audit.predictions),
        has_ids=ids is not None,
        steps=next_steps(report, advice),
        details=details(report),
        missing=missing,
    )


def overview_figures(sections: list[Section]) -> dict[str, Any]:
    """Return the figures that show all files together: the metrics with intervals, and the coverage curves."""
    short = {f"{chr(65 + i)}": s.report for i, s in enumerate(sections)}
    out = {"forest": _svg(plots.forest(short)[0], "metrics of all files with intervals", "forest")}
    ax = None
    for i, s in enumerate(sections):
        if s.audit.scores is not None and s.points is not None:
            ax = ax or plots.new_axes(5.2, 3.2)
            plots.risk_coverage(s.audit.scores, ax=ax, label=chr(65 + i), colour=SERIES[i % len(SERIES)])
    if ax is not None:
        out["risk"] = _svg(ax, "risk against coverage of all files", "overview-risk")
    return out


def _figures(key: str, audit: Audit, change: tuple[Audit, Audit] | None, top: bool) -> dict[str, Any]:
    scores, sums = audit.scores, audit.sums
    out: dict[str, Any] = {}
    share = 1.0 if scores is None else effective_share(scores)
    drawn = scores if scores is not None else sums
    if drawn is not None:
        ax = plots.reliability_figure(drawn, effective=share)
        out["reliability"] = _svg(ax, "reliability diagram with intervals, and histogram of confidence", key)
    if scores is not None:
        out["density"] = _svg(
            plots.confidence_density(scores), "confidence of correct and of incorrect answers", key + "d"
        )
        if top:
            out["risk"] = _svg(plots.risk_coverage(scores, effective=share), "risk against coverage", key + "r")
            out["accuracy"] = _svg(
                plots.accuracy_coverage(scores, effective=share), "accuracy against coverage", key + "a"
            )
    then, now = (a.scores or a.sums for a in change) if change is not None else (None, None)
    if then is not None and now is not None:
        out["after"] = _svg(plots.before_after(then, now)[0], "reliability before and after recalibration", key + "b")
    return out


def _svg(ax: Any, label: str, salt: str) -> Any:
    from markupsafe import Markup

    return Markup(to_svg(ax, label, salt))


def _classes(audit: Audit) -> tuple[str, ...] | None:
    return None if audit.predictions is None else audit.predictions.classes


def _embedded(points: OperatingPoints) -> dict[str, Any]:
    """Return the columns for the script, with six digits; the page shows four."""
    low, high = wilson(points.accepted * points.effective, points.n * points.effective)

    def six(column: Any) -> list[float]:
        return [round(v, 6) for v in np.asarray(column, float).tolist()]

    return {
        "n": points.n,
        "threshold": points.threshold.tolist(),
        "accepted": points.accepted.tolist(),
        "correct": points.correct.tolist(),
        "coverageLow": six(low),
        "coverageHigh": six(high),
        "accuracyLow": six(points.accuracy_low),
        "accuracyHigh": six(points.accuracy_high),
        "confidence": six(points.confidence),
        "ece": six(points.ece),
        "chance": six(points.ece_chance),
        "sure": list(points.sure.items()),
        "independent": points.effective >= 1,
    }


def _start(points: OperatingPoints, accuracy: float | None) -> dict[str, Any]:
    """Return answers for the next four round accuracies above the present one; the slider starts at the first."""
    higher = [goal for goal in GOALS if accuracy is not None and goal > accuracy]
    answers = [(f"{100 * goal:g}%", _answer(points, goal, False), _answer(points, goal, True)) for goal in higher[:4]]
    goal = next((g for g in higher if points.at_accuracy(g) is not None), 0.95)
    return {
        "goal": f"{100 * goal:g}",
        "index": points.at_accuracy(goal) or 0,
        "last": len(points.threshold) - 1,
        "answers": answers,
    }


def _answer(points: OperatingPoints, goal: float, sure: bool) -> tuple[str, str] | None:
    """Return (threshold, coverage) as text."""
    at = points.at_accuracy(goal, sure=sure)
    return None if at is None else (f"{points.threshold[at]:.12g}", percent(float(points.coverage[at])))
