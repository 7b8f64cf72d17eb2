"""The probe `hardness`: learned epochs and optimal ECE of runs that kept their epochs (RC §5.1)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.probe_results import Probed, side_by_side
from calibrant.diagnostics import optimal_ece, sample_hardness
from calibrant.errors import NotApplicableError
from calibrant.files import read
from calibrant.files.paths import visible
from calibrant.report.probes.hardness import panel
from calibrant.training.epochs import kept_weights
from calibrant.training.run_folder import chosen

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.cli.probe_request import Request
    from calibrant.ensembles.reference import Reference
    from calibrant.types import Predictions


def hardness(request: Request) -> Probed:
    folders = {}
    for model in request.models:
        if not Path(model.name).is_dir():
            raise NotApplicableError(
                f"hardness reads the epochs of a run, and {model.name} is not a run; pass a run's folder"
            )
        folders[model.name] = chosen(Path(model.name))
    others = [split for split in request.splits if split != "validation"]

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        folder = folders[model.name]
        found = sample_hardness(folder)
        kept = visible(folder, "epochs/validation-*.npz")
        parts = {"validation": {int(p.stem.removeprefix("validation-")): read(p) for p in kept}}
        parts |= {split: _predicted(request, model, folder, split) for split in others}
        record = {
            "samples": len(found.learned),
            "never": found.never,
            "epochs": list(found.epochs),
            "correlation": found.rank_correlation(),
            "optimal_ece": {part: [vars(e) for e in optimal_ece(held)] for part, held in parts.items() if held},
        }
        return record, {"learned": found.learned, "largest_logit": found.largest_logit, "index": found.index}

    return side_by_side(request, "hardness", {"splits": list(request.splits)}, measure, panel)


def _predicted(request: Request, model: Reference, folder: Path, split: str) -> dict[int, Predictions]:
    """A part's predictions after each epoch whose weights were kept (`train --keep-weights N`)."""
    network = copy.deepcopy(model.members[0])
    out = {}
    for epoch, weights in kept_weights(folder).items():
        network.load_state_dict(weights)
        out[epoch] = request.predictions(model, split, [network])
    return out
