"""The probe `sharpness`: how dropout makes the training loss fluctuate, by ensemble size (SS D.3, Fig. D.3a)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.cli.probe_results import Probed, side_by_side
from calibrant.diagnostics.sharpness import PASSES, SIZES, loss_sharpness
from calibrant.ensembles.dropout import dropouts
from calibrant.errors import NotApplicableError
from calibrant.report.probes.sharpness import panel
from calibrant.types import Split

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.cli.probe_request import Request
    from calibrant.ensembles.reference import Reference


def sharpness(request: Request) -> Probed:
    train = Split.TRAIN.value
    without = [model.name for model in request.models if not dropouts(model.members[0])]
    if without:
        raise NotApplicableError(f"{without[0]} has no dropout, so its loss does not fluctuate; probe the others")

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        found = loss_sharpness(request.network(model), request.few(model, train), passes=PASSES)
        rows = [
            {
                "size": size,
                "variance": found.variance(size),
                "predicted_variance": found.predicted_variance(size),
                "expected_sharpness": found.expected(size),
            }
            for size in SIZES
        ]
        return {"items": found.log_p.shape[1], "passes": PASSES, "sizes": rows}, {"log_p": found.log_p}

    return side_by_side(request, "sharpness", {"items": request.few_hash(train)}, measure, panel)
