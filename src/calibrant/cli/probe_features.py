"""The probes `variance`, `fourier` and `neighbours`: what feature maps hold, by depth (SS Fig. 5, 6b, D.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.cli.probe_results import Probed, side_by_side
from calibrant.diagnostics import feature_fourier, feature_neighbours, feature_variance
from calibrant.report.probes.features import fourier_panel, neighbours_panel, variance_panel

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.cli.probe_request import Request
    from calibrant.ensembles.reference import Reference


def variance(request: Request) -> Probed:
    split, passes, layers = request.splits[0], request.options["passes"], request.options["layers"]

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        found = feature_variance(request.network(model), request.few(model, split), layers=layers, passes=passes)
        arrays = {"data": found.data} | ({} if found.model is None else {"model": found.model})
        record = {"split": split, "items": found.data.shape[1], "passes": 1 if found.model is None else passes}
        record |= {"layers": list(found.layers), "sizes": [list(size) for size in found.sizes]}
        return record | {kind: t.mean(1).tolist() for kind, t in arrays.items()}, arrays

    settings = {"split": request.few_hash(split), "passes": passes, "layers": layers}
    return side_by_side(request, "variance", settings, measure, variance_panel)


def fourier(request: Request) -> Probed:
    split, layers, dropout = request.splits[0], request.options["layers"], request.options["dropout"]

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        few = request.few(model, split)
        found = feature_fourier(request.network(model), few, layers=layers, dropout=dropout)
        return _by_layer(split, found.sizes, found.log_amplitude, "log_amplitude", "amplitude")

    settings = {"split": request.few_hash(split), "dropout": dropout, "layers": layers}
    return side_by_side(request, "fourier", settings, measure, fourier_panel)


def neighbours(request: Request) -> Probed:
    split, layers = request.splits[0], request.options["layers"]

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        found = feature_neighbours(request.network(model), request.few(model, split), layers=layers)
        return _by_layer(split, found.sizes, found.covariance, "covariance", "covariance")

    settings = {"split": request.few_hash(split), "layers": layers}
    return side_by_side(request, "neighbours", settings, measure, neighbours_panel)


def _by_layer(
    split: str, sizes: dict[str, tuple[int, int]], values: dict[str, Tensor], key: str, name: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Means over items for JSON, and each layer's array."""
    record: dict[str, Any] = {"split": split, "items": len(next(iter(values.values()))), "layers": list(values)}
    record |= {"sizes": [list(sizes[layer]) for layer in values]}
    record |= {key: {layer: each.mean(0).tolist() for layer, each in values.items()}}
    return record, {f"{name}.{layer}": each for layer, each in values.items()}
