"""The probe `fourier`: log-amplitudes of feature maps on the diagonal of their transform, by depth (SS Fig. 6b)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.cli.probe_request import Probed, Request, side_by_side
from calibrant.diagnostics import feature_fourier
from calibrant.report.probes.features import fourier_panel

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.ensembles.reference import Reference


def probe(request: Request) -> Probed:
    split, layers, dropout = request.splits[0], request.options["layers"], bool(request.options["dropout"])

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        network = model.members[0].to(request.device)
        found = feature_fourier(network, request.few(model, split), layers=layers, dropout=dropout)
        record = {
            "split": split,
            "items": len(next(iter(found.log_amplitude.values()))),
            "layers": list(found.log_amplitude),
            "sizes": [list(found.sizes[name]) for name in found.log_amplitude],
            "log_amplitude": {name: a.mean(0).tolist() for name, a in found.log_amplitude.items()},
        }
        return record, {f"amplitude.{name}": a for name, a in found.log_amplitude.items()}

    settings = {"split": request.few_hash(split), "dropout": dropout, "layers": layers}
    return side_by_side(request, "fourier", settings, measure, fourier_panel)
