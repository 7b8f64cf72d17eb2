"""What to do next, from the verdict."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from calibrant.files.paths import calibrated, partner
from calibrant.report.verdict import judge
from calibrant.types import Report

CALIBRATION = "CALIBRATION"
"""Placeholder in a command for predictions on held-out items, if no such file is known."""


@dataclass(frozen=True)
class Step:
    title: str
    text: str
    command: str | None = None


def next_steps(report: Report) -> list[Step]:
    """In order of worth: repair calibration (cheap), then refinement (needs another model), then watch it."""
    kind = judge(report).kind
    file = shlex.quote(report.file or "PREDICTIONS")
    found = partner(report.file) if report.file else None
    held_out = CALIBRATION if found is None else shlex.quote(str(found))
    steps: list[Step] = []
    if kind in ("over", "under", "uneven"):
        steps += _recalibrate(report, kind, file, held_out)
    elif kind == "calibrated":
        steps.append(
            Step(
                "Leave the confidence as it is",
                "Nothing here says that it is wrong. A recalibration could only add noise. More items would make the "
                "intervals narrower, if you need to be surer.",
            )
        )
    else:
        gap = report.metrics.get("gap")
        if gap is None or "accuracy" not in report:
            why = "A verdict needs accuracy and gap, which were not asked for."
            steps.append(Step("Get a verdict", why, f"calibrant audit {file}"))
        elif gap.reason:
            steps.append(Step("Collect more items", f"These cannot tell a difference from noise: {gap.reason}."))
        else:
            why = "Without them, a difference cannot be told from noise."
            steps.append(Step("Get intervals", why, f"calibrant audit {file}"))
    auroc = report.metrics.get("auroc")
    if auroc is not None and auroc.value is not None and auroc.value < 0.85:
        steps.append(
            Step(
                "Improve the ordering",
                "Many errors are as sure as correct answers, and recalibration cannot change that "
                "order. Ensembles (PEP, dropout, deep) and training with refinement in mind can.",
            )
        )
    steps.append(
        Step(
            "Set a threshold",
            "Choose one with a guarantee, on data like those it will meet. Confidence that was right here may be wrong "
            "on other data: audit again when they change.",
            f"calibrant decide {held_out} --accuracy 0.95 -o rule",
        )
    )
    return steps


def _recalibrate(report: Report, kind: str, file: str, held_out: str) -> list[Step]:
    after = calibrated(report.file or "")
    claim = {"over": "overstates", "under": "understates", "uneven": "misstates"}[kind]
    if report.k is None:  # top-1 files have no NLL to choose by
        method, answers = " --method isotonic", ", and without changing the answers."
    else:
        method = ""
        answers = ". The automatic choice may change some answers, where that helps; --method temperature never does."
    why = f"The confidence {claim} what the model knows. A post-hoc map repairs that without training{answers}"
    return [
        Step(
            "Recalibrate",
            f"{why} Fit it on items that you will not report on.",
            f"calibrant fit {held_out}{method} -o map",
        ),
        Step(
            "Judge the map",
            "On items that it was not fitted on.",
            f"calibrant apply map {file} -o {after} && calibrant compare {file} {after}",
        ),
    ]
