"""Temperature scaling and one-vs-rest isotonic against their peers, in one process: ratios, not seconds.

    python -m benchmarks.temperature [--isotonic] [--repeats 5]

Ours is the solver without the guard, in float64 with its certificate. Peers that do not import are left out
(`pip install probmetrics netcal torch-uncertainty`). Runs alternate, so that a busy machine slows all of them
alike, and the best of the repeats counts. The error is against scipy's root of the gradient in float64.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import calibrant
from benchmarks.side_by_side import Call, in_turns, options, table
from calibrant.posthoc.isotonic import Isotonic
from calibrant.posthoc.temperature import Temperature

SIZES = ((50_000, 10), (5_000, 1_000))
Fit = Callable[[Tensor, Tensor], float]


def sample(n: int, k: int, T: float = 1.7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Float32 logits whose temperature is about T."""
    g = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(n, k, generator=g)
    return z, torch.multinomial(torch.softmax(z / T, 1), 1, generator=g)[:, 0]


def reference(z: Tensor, y: Tensor) -> float:
    """T* by scipy's Brent on the gradient in float64, to 1e-14."""
    from scipy.optimize import brentq

    shifted = z.double() - z.double().amax(1, keepdim=True)
    label = shifted.gather(1, y[:, None]).mean()

    def slope(x: float) -> float:
        p = torch.softmax(shifted * math.exp(x), 1)
        return float((p * shifted).sum(1).mean() - label)

    return math.exp(-brentq(slope, -5, 5, xtol=1e-14, rtol=1e-14))


def fits() -> dict[str, Fit]:
    """Name → logits and labels → T."""
    out: dict[str, Fit] = {
        "calibrant": lambda z, y: (
            Temperature().solve(calibrant.Predictions(labels=y, logits=z)).summary()["temperature"]
        ),
        "calibrant, checked and hashed": lambda z, y: (
            Temperature().fit(calibrant.predictions(z, y)).summary()["temperature"]
        ),
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


def race(n: int, k: int, repeats: int) -> Iterator[tuple[Any, ...]]:
    """Method, its least seconds over ours, and its relative error in T."""
    z, y = sample(n, k)
    methods, found = fits(), dict[str, float]()

    def call(name: str) -> None:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            found[name] = methods[name](z, y)

    calls = [partial(call, name) for name in methods]
    best = [min(each) for each in in_turns(calls, repeats, clock=time.perf_counter)]
    truth = reference(z, y)
    for name, least in zip(methods, best, strict=True):
        yield f"{n:,} × {k:,}", name, f"{least:.4f}", f"{least / best[0]:.2f}", f"{abs(found[name] / truth - 1):.1e}"


def isotonic(repeats: int, n: int = 50_000, k: int = 1_000) -> Iterator[tuple[Any, ...]]:
    """All K columns; scikit-learn is timed on every 20th column, PAVA with its own sort, and multiplied."""
    from sklearn.isotonic import IsotonicRegression

    z, y = sample(n, k)
    p = calibrant.predictions(z, y)
    probs, labels = torch.softmax(z.double(), 1).numpy(), y.numpy()

    def peer() -> None:
        for c in range(0, k, 20):
            IsotonicRegression(out_of_bounds="clip").fit(probs[:, c], labels == c)

    calls: list[Call] = [lambda: Isotonic(kind="one_vs_rest").solve(p), peer]
    ours, theirs = map(min, in_turns(calls, repeats, clock=time.perf_counter))
    yield f"{n:,} × {k:,}", "calibrant isotonic", f"{ours:.3f}", "1", ""
    yield f"{n:,} × {k:,}", "scikit-learn IsotonicRegression", f"{20 * theirs:.3f}", f"{20 * theirs / ours:.2f}", ""


def main() -> None:
    args = options(__doc__, repeats=5, isotonic=False)
    logging.disable(logging.WARNING)
    rows = [row for n, k in SIZES for row in race(n, k, args.repeats)]
    if args.isotonic:
        rows += isotonic(max(1, args.repeats // 2))
    print(table(("items × classes", "method", "seconds", "× ours", "relative error"), rows, "  rrr"))


if __name__ == "__main__":
    main()
