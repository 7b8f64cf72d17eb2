"""Correlation of neighbouring points of feature maps, by depth (SS D.1, Eq. 9–13, Fig. D.1).

    Cov(y_i, y_{i+1}) = Σ_l w_l w_{l+1} σ²(x_{i−l+1})    for y = w * x, x independent (Eq. 12, which prints x_{i−l+2})
    Cov_i(d) = mean over channels c and points p of (z_ic(p) − m_c(p)) (z_ic(p + d) − m_c(p + d)),   m: mean over items
    r(d)     = Σ_i Cov_i(d) / Σ_i Cov_i(0)

A convolution makes neighbouring points similar, even when its input is noise. That is why smoothing may average them.
The paper shows the points around the middle of the map; here every point counts, along both axes, which makes the
numbers more precise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.diagnostics.batches import each_batch
from calibrant.diagnostics.feature_maps import ByLayer, layers_of, passes
from calibrant.ensembles.ensemble import positive
from calibrant.errors import InputError


@dataclass(frozen=True, eq=False)
class FeatureNeighbours(ByLayer):
    """Each layer's Cov_i(d) for d = 0, 1, …, [items, distances]."""

    covariance: dict[str, Tensor]

    def correlation(self, layer: str) -> Tensor:
        """r(d) as one number per item, [items, distances]; their mean is r(d), and their spread gives its interval.

        They are r + (Cov_i(d) − r Cov_i(0)) / mean Cov(0), the first-order terms of a ratio of means.
        """
        each = self.covariance[layer]
        own = each[:, :1].mean(0)
        if float(own) == 0:
            return torch.full_like(each, torch.nan)  # all items have the same map
        r = each.mean(0) / own
        return r + (each - r * each[:, :1]) / own


def feature_neighbours(
    model: nn.Module, batches: Iterable[Any], *, layers: Sequence[str] | None = None, radius: int = 4
) -> FeatureNeighbours:
    """Covariance over items of feature-map points with those up to `radius` away, by depth; without dropout.

    The batches are read twice: for the means, then for the products. `layers` are as in `feature_variance`.
    """
    positive("radius", radius)
    chosen, twice = layers_of(model, layers), list(each_batch(batches))
    total: dict[str, Tensor] = {}
    items = 0
    for _, found in passes(model, twice, chosen):
        items += len(next(iter(found.values())))
        for name, z in found.items():
            total[name] = total.get(name, 0) + z.double().sum(0)
    if items < 2:
        raise InputError("a covariance over items needs at least 2; pass more")
    rows: dict[str, list[Tensor]] = {}
    for _, found in passes(model, twice, chosen):
        for name, z in found.items():
            rows.setdefault(name, []).append(_products(z.double() - total[name] / items, radius).cpu())
    sizes = {name: (t.shape[1], t.shape[2]) for name, t in total.items()}
    return FeatureNeighbours(sizes, {name: torch.cat(each) for name, each in rows.items()})


def _products(e: Tensor, radius: int) -> Tensor:
    """Return [items, distances]: the mean over channels and points of e(p) e(p + d), with d along either axis."""
    columns = []
    for d in range(min(radius, *(n - 1 for n in e.shape[2:])) + 1):
        down = e[:, :, d:] * e[:, :, : e.shape[2] - d]
        across = e[..., d:] * e[..., : e.shape[3] - d]
        columns.append((down.mean((1, 2, 3)) + across.mean((1, 2, 3))) / 2)
    return torch.stack(columns, 1)
