"""The peers of the race. Each fits on probabilities and labels and returns a function from probabilities to
probabilities.

Peers that are not installed are left out. Binary methods run through the peer's own one-vs-rest wrapper.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Apply = Callable[[Array], Array]
Fit = Callable[[Array, NDArray[np.int64]], Apply]


SMALL_ONLY = ("catboost", "lightgbm", "kernel", "softplus", "probmetrics matrix", "netcal beta", "netcal bbq")
"""Methods that take minutes with 100 classes or more, and so race on small sets only."""


def peers() -> dict[str, Fit]:
    """Name → fit, for every peer that is installed."""
    out: dict[str, Fit] = {}
    if importlib.util.find_spec("probmetrics"):
        out |= _probmetrics()
    if importlib.util.find_spec("netcal"):
        out |= _netcal()
    return out


def _probmetrics() -> dict[str, Fit]:
    from probmetrics import calibrators as c

    def rest(binary: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: c.MulticlassOneVsRestCalibrator(binary())

    def named(name: str) -> Callable[[], Any]:
        return lambda: c.get_calibrator(name)

    made: dict[str, Callable[[], Any]] = {
        **{n: named(n) for n in ("temp-scaling", "ts-mix", "svs", "sms", "platt", "platt-logits", "isotonic", "cir")},
        "vector": c.VectorScalingCalibrator,
        "matrix": c.MatrixScalingCalibrator,
        "ets": c.ETSCalibrator,
        "softplus": c.SoftPlusCalibrator,
        "ivap-ovr": named("ivap-ovr"),
        "beta-ovr": rest(c.BetacalCalibrator),
        "cdf-spline-ovr": rest(c.CDFSplineCalibrator),
        "histogram-ovr": rest(c.BinaryHistogramBinningCalibrator),
        "platt-binner-ovr": rest(c.BinaryPlattBinnerCalibrator),
        "kernel": c.KernelCalibrator,
        "catboost": c.CatBoostCalibrator,
        "lightgbm": c.LightGBMCalibrator,
        "dircal": named("dircal"),
        "dircal-cv": named("dircal-cv"),
    }

    def fit_of(make: Callable[[], Any]) -> Fit:
        def fit(p: Array, y: NDArray[np.int64]) -> Apply:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                calibrator = make()
                calibrator.fit(p, y)
            return lambda q: np.asarray(calibrator.predict_proba(q), dtype=np.float64)

        return fit

    return {f"probmetrics {name}": fit_of(make) for name, make in made.items()}


def _netcal() -> dict[str, Fit]:
    from netcal.binning import BBQ, HistogramBinning, IsotonicRegression
    from netcal.scaling import BetaCalibration, LogisticCalibration, TemperatureScaling

    made: dict[str, Callable[[], Any]] = {
        "temperature": TemperatureScaling,
        "logistic": LogisticCalibration,
        "beta": BetaCalibration,
        "histogram": lambda: HistogramBinning(bins=15),
        "isotonic": IsotonicRegression,
        "bbq": BBQ,
    }

    def fit_of(make: Callable[[], Any]) -> Fit:
        def fit(p: Array, y: NDArray[np.int64]) -> Apply:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                calibrator = make()
                calibrator.fit(p, y)
            return lambda q: np.asarray(calibrator.transform(q), dtype=np.float64)

        return fit

    return {f"netcal {name}": fit_of(make) for name, make in made.items()}
