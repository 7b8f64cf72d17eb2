"""The next steps that follow from the verdict."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibrant.files.paths import calibrated, partner
from calibrant.report.verdict import judge
from calibrant.types import Report

if TYPE_CHECKING:
    from calibrant.posthoc.advise import Advice

CALIBRATION = "CALIBRATION"
"""Placeholder in a command for predictions on held-out items, if no such file is known."""


@dataclass(frozen=True)
class Step:
    title: str
    text: str
    command: str | None = None


def next_steps(report: Report, advice: Advice | None = None) -> list[Step]:
    """Return the steps: calibration first (cheap), then refinement (needs another model), then a threshold.

    If `advice` says which map to use, the general step to recalibrate is left out.
    """
    kind = judge(report).kind
    file = shlex.quote(report.file or "PREDICTIONS")
    found = partner(report.file) if report.file else None
    held_out = CALIBRATION if found is None else shlex.quote(str(found))
    steps: list[Step] = []
    if advice is not None:
        steps += [] if advice.command is None else [_judge_map(report, file)]
    elif kind in ("over", "under", "uneven"):
        steps += _recalibrate(report, kind, file, held_out)
    elif kind == "calibrated":
        steps.append(
            Step(
                "Leave the confidence as it is",
                "These items do not show that it is wrong, and recalibrating could add noise. If you need to be surer, "
                "audit more items: the intervals become narrower.",
            )
        )
    else:
        gap = report.metrics.get("gap")
        if gap is None or "accuracy" not in report:
            why = "A verdict needs the metrics accuracy and gap."
            steps.append(Step("Get a verdict", why, f"calibrant audit {file}"))
        elif gap.reason:
            steps.append(Step("Collect more items", f"This many cannot tell a difference from noise: {gap.reason}."))
        else:
            why = "Without intervals, a difference cannot be told from noise."
            steps.append(Step("Get intervals", why, f"calibrant audit {file}"))
    auroc = report.metrics.get("auroc")
    if auroc is not None and auroc.value is not None and auroc.value < 0.85:
        steps.append(
            Step(
                "Improve the ordering",
                "The model is as sure of many errors as of its correct answers. Temperature scaling keeps that order. "
                "Deep ensembles and another training can change it: see `calibrant advise`.",
            )
        )
    steps.append(
        Step(
            "Set a threshold",
            "Choose one with a guarantee, on data like those on which it will be used. When the data change, audit "
            "again: confidence that is right here may be wrong there.",
            f"calibrant decide {held_out} --accuracy 0.95 -o rule",
        )
    )
    return steps


def _recalibrate(report: Report, kind: str, file: str, held_out: str) -> list[Step]:
    claim = {"over": "overstates", "under": "understates", "uneven": "misstates"}[kind]
    if report.k is None:  # top-1 files have no NLL to choose by
        method, answers = " --method isotonic", "A map repairs that without training and keeps every answer."
    else:
        method, answers = (
            "",
            (
                "A map repairs that without training. The automatic choice may change some answers where that helps; "
                "with --method temperature, no answer changes."
            ),
        )
    why = f"The confidence {claim} what the model knows. {answers}"
    return [
        Step(
            "Recalibrate",
            f"{why} Fit it on items that you will not report on.",
            f"calibrant fit {held_out}{method} -o map",
        ),
        _judge_map(report, file),
    ]


def _judge_map(report: Report, file: str) -> Step:
    after = calibrated(report.file or "")
    return Step(
        "Judge the map",
        "Apply it to items on which it was not fitted, and compare.",
        f"calibrant apply map {file} -o {after} && calibrant compare {file} {after}",
    )
