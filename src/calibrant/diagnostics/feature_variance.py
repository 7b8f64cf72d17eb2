"""Standard deviation of feature maps, by depth. Ensembles and smoothing lower it (SS Prop. 2.1, Fig. 5).

    model uncertainty:  standard deviation of each point over T passes with dropout
    data uncertainty:   standard deviation over the points of a map, in one pass

Both are averaged over channels, as in the paper, and here also over points. Means and intervals are over items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.diagnostics.feature_maps import ByLayer, layers_of
from calibrant.diagnostics.feature_maps import passes as each_pass
from calibrant.ensembles.dropout import dropouts
from calibrant.ensembles.ensemble import positive
from calibrant.errors import InputError


@dataclass(frozen=True, eq=False)
class FeatureVariance(ByLayer):
    """The standard deviations of each layer and item; `model` is None for a network without dropout."""

    data: Tensor  # [layers, items]
    model: Tensor | None  # [layers, items]

    def of(self, kind: str) -> Tensor:
        """Return the "model" or the "data" uncertainty, [layers, items]."""
        found = self.data if kind == "data" else self.model
        if found is None:
            raise InputError("a network without dropout has no model uncertainty; ask for 'data'")
        return found

    def at(self, kind: str, layer: str) -> Tensor:
        """Return [items]: the uncertainty at one layer."""
        return self.of(kind)[self.layers.index(layer)]

    def at_ends(self, kind: str) -> Tensor:
        """Return [items]: the mean over the ends of the stages."""
        return torch.stack([self.at(kind, layer) for layer in self.ends]).mean(0)


def feature_variance(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    layers: Sequence[str] | None = None,
    passes: int = 10,
    seed: int = 0,
) -> FeatureVariance:
    """Standard deviations of feature maps by depth: model uncertainty (over dropout masks) and data uncertainty.

    `layers` are names of modules; by default the network's building blocks.
    """
    positive("passes", passes)
    masks = passes if dropouts(model) else 0
    if masks == 1:
        raise InputError(f"passes={passes}; a standard deviation over passes needs at least 2")
    sizes: dict[str, tuple[int, int]] = {}
    data: dict[str, list[Tensor]] = {}
    of_model: dict[str, list[Tensor]] = {}
    mean: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    for j, found in each_pass(model, batches, layers_of(model, layers), masks=masks, seed=seed):
        for name, z in found.items():
            if j == 0:
                sizes[name] = (z.shape[2], z.shape[3])
                data.setdefault(name, []).append(z.double().flatten(2).std(2).mean(1).cpu())
                mean[name], squares[name] = torch.zeros_like(z), torch.zeros_like(z)
            off = z - mean[name]  # Welford: sums of squares would cancel
            mean[name] += off / (j + 1)
            squares[name] += off * (z - mean[name])
            if j == masks - 1:
                deviation = (squares[name] / j).sqrt()
                of_model.setdefault(name, []).append(deviation.double().mean((1, 2, 3)).cpu())
    stacked = [torch.stack([torch.cat(rows) for rows in kind.values()]) for kind in (data, of_model) if kind]
    return FeatureVariance(sizes, stacked[0], stacked[1] if masks else None)
