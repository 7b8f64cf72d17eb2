"""The probe `variance`: standard deviations of feature maps by depth (SS Fig. 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.cli.probe_request import Probed, Request, side_by_side
from calibrant.diagnostics import feature_variance
from calibrant.report.probes.features import variance_panel

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.ensembles.reference import Reference


def probe(request: Request) -> Probed:
    split, passes, layers = request.splits[0], request.options["passes"], request.options["layers"]

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        network = model.members[0].to(request.device)
        found = feature_variance(network, request.few(model, split), layers=layers, passes=passes)
        record = {
            "split": split,
            "items": found.data.shape[1],
            "passes": passes if found.model is not None else 1,
            "layers": list(found.layers),
            "sizes": [list(size) for size in found.sizes],
        }
        arrays = {"data": found.data} | ({} if found.model is None else {"model": found.model})
        return record | {kind: t.mean(1).tolist() for kind, t in arrays.items()}, arrays

    settings = {"split": request.few_hash(split), "passes": passes, "layers": layers}
    return side_by_side(request, "variance", settings, measure, variance_panel)
