"""The probe `overfitting`: PEP's gain against overfitting, along the epochs of a training (PEP Fig. 3)."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.probe_results import Probed, side_by_side
from calibrant.diagnostics import overfitting as measured
from calibrant.ensembles.pep import MEMBERS
from calibrant.errors import NotApplicableError
from calibrant.report.probes.pep import overfitting_panel
from calibrant.training.distances import items_hash
from calibrant.training.epochs import kept_weights
from calibrant.training.run_folder import chosen
from calibrant.types import Split

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.cli.probe_request import Request
    from calibrant.ensembles.reference import Reference

MOST = 1000
"""Items of each part, unless --limit says another number."""


def overfitting(request: Request) -> Probed:
    split, members = request.splits[0], request.options["members"] or MEMBERS
    checkpoints = {model.name: _checkpoints(model.name) for model in request.models}
    limited = replace(request, limit=request.limit or MOST)
    parts = (Split.TRAIN.value, Split.VALIDATION.value, split)

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        batches = (limited.batches(model, part) for part in parts)
        rows = measured(request.network(model), checkpoints[model.name], *batches, members=members)
        record = {"split": split, "items": [limited.part(part).n for part in parts], "members": members}
        return record | {"epochs": [asdict(row) for row in rows]}, {}

    settings = {"split": split, "members": members, "epochs": [list(held) for held in checkpoints.values()]}
    settings |= {part: items_hash(limited.part(part)) for part in parts}
    return side_by_side(request, "overfitting", settings, measure, overfitting_panel)


def _checkpoints(name: str) -> dict[int, dict[str, Tensor]]:
    found = kept_weights(chosen(Path(name))) if Path(name).is_dir() else {}
    if len(found) < 2:
        raise NotApplicableError(f"{name} has no weights of several epochs; train with --keep-weights N")
    return found
