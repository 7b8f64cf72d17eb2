"""Frequencies of feature maps, by depth. Smoothing is a low-pass filter (SS Prop. 2.2, Fig. 6b).

    a_i(f) = ½ log mean_c |F(z_ic)(f, f)|²        F: the orthonormal two-dimensional transform; f from 0 to π

a_i is the log-amplitude of item i on the diagonal. Channels are averaged by their power, so Parseval's
Σ_f |F|² = Σ z² holds for the average, and a channel of zeros does no harm. Figures show a(f) − a(0), because the scale
differs between networks. The paper shows the end of stage 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.diagnostics.feature_maps import ByLayer, layers_of, passes
from calibrant.ensembles.dropout import dropouts

HIGH = 0.3
"""In units of π. MC dropout adds noise at this frequency and above (SS §2.2)."""


@dataclass(frozen=True, eq=False)
class FeatureFourier(ByLayer):
    """Each layer's log-amplitude on the diagonal, [items, frequencies]."""

    log_amplitude: dict[str, Tensor]

    def frequencies(self, layer: str) -> Tensor:
        """Return a layer's frequencies in units of π, from 0 to 1 (below 1 where the side is odd)."""
        n = min(self.sizes[layer])
        return torch.arange(n // 2 + 1) * 2 / n

    def relative(self, layer: str) -> Tensor:
        """a(f) − a(0), [items, frequencies]."""
        a = self.log_amplitude[layer].double()
        return a - a[:, :1]

    def high(self, layer: str | None = None) -> Tensor:
        """[items]: the mean of a(f) − a(0) at 0.3π and above, by default at the end of stage 1 (SS Fig. 6b)."""
        layer = self.ends[0] if layer is None else layer
        return self.relative(layer)[:, self.frequencies(layer) >= HIGH].mean(1)


def feature_fourier(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    layers: Sequence[str] | None = None,
    dropout: bool = True,
    seed: int = 0,
) -> FeatureFourier:
    """Log-amplitude of feature maps on the diagonal of their Fourier transform, by depth.

    Every batch passes once; with `dropout`, dropout layers are active, as in the paper. `layers` are as in
    `feature_variance`.
    """
    rows: dict[str, list[Tensor]] = {}
    sizes: dict[str, tuple[int, int]] = {}
    masks = 1 if dropout and dropouts(model) else 0
    for _, found in passes(model, batches, layers_of(model, layers), masks=masks, seed=seed):
        for name, z in found.items():
            sizes[name] = (z.shape[2], z.shape[3])
            rows.setdefault(name, []).append(_diagonal(spectrum(z)).cpu())
    return FeatureFourier(sizes, {name: torch.cat(each) for name, each in rows.items()})


def spectrum(z: Tensor) -> Tensor:
    """Return the mean power over channels, [N, H, W] in float64; its sum over frequencies is that of z² over points."""
    power: Tensor = torch.fft.fft2(z.double(), norm="ortho").abs().square().mean(1)
    return power


def _diagonal(power: Tensor) -> Tensor:
    """Return ½ log of the power at (f, f), for f = 0 … π along the shorter side."""
    height, width = power.shape[1:]
    n = min(height, width)
    i = torch.arange(n // 2 + 1, device=power.device)
    along = power[:, (i * height / n).round().long(), (i * width / n).round().long()]
    return 0.5 * along.clamp_min(torch.finfo(power.dtype).tiny).log()
