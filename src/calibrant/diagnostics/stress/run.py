"""Compute every cell that is not stored yet: make its images batch by batch, and store the subject's logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from calibrant.diagnostics.stress.cells import Cell
from calibrant.diagnostics.stress.material import Material, limited
from calibrant.diagnostics.stress.store import Arrays, Folder
from calibrant.diagnostics.stress.subject import Subject
from calibrant.ensembles.ensemble import with_progress
from calibrant.errors import CalibrantError, InputError


def run(
    subject: Subject, material: Material, cells: Sequence[Cell], folder: Folder | None = None, *, progress: bool = False
) -> dict[Cell, Arrays]:
    """Return the arrays of all cells: `logits`, `labels` where there are any, `member_entropy` for an ensemble."""
    out: dict[Cell, Arrays] = {}
    missing = [c for c in cells if folder is None or c.key not in folder]
    for cell in with_progress(missing, "stress", show=progress):
        arrays = _computed(subject, material, cell)
        if folder is None:
            out[cell] = arrays
        else:
            texts = {"split": "calibration" if cell.kind == "calibration" else "test"}
            texts |= {} if subject.raw else {"raw": "false"}
            texts |= {"said": remark} if (remark := material.remark(cell)) else {}
            folder.write(cell.key, arrays, texts)
    if folder is None:
        return out
    return {cell: folder.read(cell.key) for cell in cells}


def count_classes(subject: Subject, material: Material, model: str, data: str) -> int:
    """Return the number of classes, from a pass over two items; an error says what does not fit."""
    few = replace(material, part=limited(material.part, 2))
    try:
        return int(subject.answer(few.batches(Cell("clean"))).logits.shape[-1])
    except CalibrantError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        shape = "×".join(map(str, material.shape))
        raise InputError(
            f"network {model!r} cannot read {data} ({shape}): {reason}; choose a network or data that fit"
        ) from error


def check_plan(material: Material, plan: Sequence[Cell]) -> None:
    """Make the images of two items for every kind of cell, to refuse what cannot be made before anything is written."""
    few = replace(material, part=limited(material.part, 2), batch=2)
    seen: set[str] = set()
    for cell in plan:
        if cell.kind in seen and cell.kind in ("corruption", "perturbation", "frequency"):
            continue  # types differ in how they change an image, not in which images they take
        seen.add(cell.kind)
        next(iter(few.batches(cell)), None)


def check_same_items(material: Material, reference: Mapping[tuple[str, int], Arrays], name: str) -> None:
    """Refuse a reference whose cells have other items (by their labels), before anything is written."""
    for (kind, severity), arrays in list(reference.items())[:1]:
        mine = material.labels(Cell("corruption", kind, severity))
        if mine is None or mine.tolist() != arrays["labels"].tolist():
            raise InputError(f"the reference {name} shows other items; stress it on the same data, split and limit")


def _computed(subject: Subject, material: Material, cell: Cell) -> Arrays:
    answer = subject.answer(material.batches(cell))
    arrays: Arrays = {"logits": answer.logits}
    frames = material.frames(cell)
    if frames > 1:
        arrays["logits"] = answer.logits.reshape(-1, frames, answer.logits.shape[-1])
    labels = material.labels(cell)
    if labels is not None:
        arrays["labels"] = labels
    if answer.member_entropy is not None:
        arrays["member_entropy"] = answer.member_entropy
    return arrays
