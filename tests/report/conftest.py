"""Synthetic predictions with a known fault, and reports whose intervals are written by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from calibrant import predictions
from calibrant.metrics.evaluate import evaluate
from calibrant.report.html import Audit
from calibrant.types import Estimate, Predictions, Report

MakePredictions = Callable[..., Predictions]


@pytest.fixture
def make() -> MakePredictions:
    """N items of K classes; `sharpness` 1 is calibrated by construction, above 1 overconfident."""

    def _make(n: int = 2000, k: int = 6, sharpness: float = 2.0, seed: int = 0, **fields: object) -> Predictions:
        rng = np.random.default_rng(seed)
        logits = rng.normal(0, 1.6, (n, k))
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        labels = (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(0, k - 1)
        return predictions(sharpness * logits, labels, **fields)  # type: ignore[arg-type]

    return _make


@pytest.fixture
def audit(make: MakePredictions) -> Callable[..., Audit]:
    def _audit(name: str = "toy.npz", **options: object) -> Audit:
        p = make(**options)
        return Audit.of(p, evaluate(p, intervals=False), name)

    return _audit


@pytest.fixture
def report() -> Callable[..., Report]:
    """A report of accuracy, gap and AUROC alone, as given."""

    def _report(
        accuracy: float,
        gap: tuple[float, float | None, float | None],
        p: float | None = None,
        auroc: float | None = 0.9,
        about: str = "top label",
    ) -> Report:
        return Report(
            metrics={
                "accuracy": Estimate(accuracy),
                "gap": Estimate(*gap),
                "auroc": Estimate(auroc, reason=None if auroc is not None else "all predictions are correct"),
            },
            n=1000,
            k=10,
            conventions={"about": about, "bins": 15},
            extras={} if p is None else {"calibration_test": {"p": p}},
        )

    return _report
