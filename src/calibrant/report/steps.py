"""What to do next, from the verdict; and the candidates of a fit as a table, whatever columns they have."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.files.paths import calibrated, partner
from calibrant.report.comparison import field
from calibrant.report.numbers import cell
from calibrant.report.verdict import judge
from calibrant.types import Report

VERDICT = " verdict"
"""Suffix of the columns that hold the verdict on another column."""
CALIBRATION = "CALIBRATION"
"""Placeholder in a command for predictions on held-out items, if no such file is known."""


@dataclass(frozen=True)
class Step:
    title: str
    text: str
    command: str | None = None


@dataclass(frozen=True)
class Advice:
    """Candidates that were tried: a sentence, and rows of text under `columns`; `chosen` marks one row."""

    sentence: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    chosen: int | None
    command: str | None
    room: tuple[tuple[str, ...], ...] = ()  # calibratability: what each family could reach at best
    room_columns: tuple[str, ...] = ()
    room_said: str = ""
    how: str = ""


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


def advice(record: Any) -> Advice:
    """From an object or mapping with `rows` (records; nested before/after are flattened), and optionally `sentence`,
    `chosen` (the first column's value of the row to mark) and `command`."""
    flat = [_flat(row) for row in field(record, "rows") or field(record, "ranking") or ()]
    columns = tuple(dict.fromkeys(key for row in flat for key in row if not key.endswith(VERDICT)))
    rows = tuple(tuple(_judged(row, column) for column in columns) for row in flat)
    picked = field(record, "chosen") or field(record, "method")
    chosen = next(
        (i for i, row in enumerate(flat) if picked is not None and next(iter(row.values()), None) == picked), None
    )
    sentence, command = field(record, "sentence"), field(record, "command")
    room = field(record, "room")
    best = [_flat(row.to_dict() if hasattr(row, "to_dict") else row) for row in field(room, "rows")] if room else []
    names = tuple(dict.fromkeys(key for row in best for key in row))
    return Advice(
        str(sentence or ""),
        columns,
        rows,
        chosen,
        None if command is None else str(command),
        room=tuple(tuple(cell(row.get(name), name) for name in names) for row in best),
        room_columns=tuple(name.replace("_", " ") for name in names),
        room_said=str(field(room, "said") or "") if room else "",
        how=str(field(record, "how") or ""),
    )


def _judged(row: Mapping[str, Any], column: str) -> str:
    """A cell and its verdict: '0.2844 [0.25, 0.32] better'."""
    verdict = row.get(f"{column}{VERDICT}")
    return cell(row.get(column), column) + (f" {verdict}" if verdict else "")


def _flat(row: Any) -> dict[str, Any]:
    """{"nll": {"before": 1, "after": 2}} → {"nll before": 1, "nll after": 2}; estimates stay whole."""
    record = row if isinstance(row, Mapping) else vars(row)
    out: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping) and "value" not in value:
            out.update({f"{key} {inner}": v for inner, v in value.items()})
        elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 0:
            out[str(key)] = None
        else:
            out[str(key)] = value.to_dict() if hasattr(value, "to_dict") else value
    return {str(key): value for key, value in out.items()}
