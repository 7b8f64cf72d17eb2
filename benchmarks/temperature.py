"""T* of temperature scaling by our solver and by every installed peer, for `speed`.

Ours is the float64 solver with its certificate, without the guard.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor

import calibrant
from calibrant.posthoc.temperature import Temperature

SIZES = ((50_000, 10), (5_000, 1_000))
Fit = Callable[[Tensor, Tensor], float]


def sample(n: int, k: int, T: float = 1.7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Float32 logits whose temperature is about T."""
    g = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(n, k, generator=g)
    return z, torch.multinomial(torch.softmax(z / T, 1), 1, generator=g)[:, 0]


def fits() -> dict[str, Fit]:
    """Name → logits and labels → T."""
    out: dict[str, Fit] = {
        "calibrant": lambda z, y: (
            Temperature().solve(calibrant.Predictions(labels=y, logits=z)).summary()["temperature"]
        )
    }
    with contextlib.suppress(ImportError):
        from probmetrics.calibrators import TemperatureScalingCalibrator
        from probmetrics.distributions import CategoricalLogits

        def bisection(z: Tensor, y: Tensor) -> float:
            c = TemperatureScalingCalibrator()
            c.fit_torch(CategoricalLogits(z), y)
            return float(1 / c.invtemp_)

        out["probmetrics (bisection)"] = bisection
    with contextlib.suppress(ImportError):
        from netcal.scaling import TemperatureScaling

        def netcal(z: Tensor, y: Tensor) -> float:
            t = TemperatureScaling()
            t.fit(torch.softmax(z.double(), 1).numpy(), y.numpy())  # in float32 it stays at T = 1
            return float(1 / t.temperature[0])

        out["netcal"] = netcal
    with contextlib.suppress(ImportError):
        from torch.utils.data import DataLoader, TensorDataset
        from torch_uncertainty.post_processing import TemperatureScaler

        def uncertainty(z: Tensor, y: Tensor) -> float:
            t = TemperatureScaler()
            t.fit(DataLoader(TensorDataset(z, y), batch_size=5_000), progress=False)
            return float(t.temperature[0])

        out["torch-uncertainty"] = uncertainty
    return out
