"""Diagnostics: what a network's loss surface says. They read a model; they own no training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibrant.diagnostics.hardness import SampleHardness, sample_hardness
from calibrant.diagnostics.hessian import HessianSpectrum, hessian_density, hessian_spectrum, hessian_trace
from calibrant.diagnostics.levels import ByLevel, calibration_by_level
from calibrant.diagnostics.optimal_ece import optimal_ece
from calibrant.diagnostics.pep_effect import PEPEffect, pep_effect
from calibrant.diagnostics.stability import variance_over_runs

DIAGNOSTICS: dict[str, Callable[..., Any]] = {
    "hessian_spectrum": hessian_spectrum,
    "hessian_density": hessian_density,
    "hessian_trace": hessian_trace,
    "sample_hardness": sample_hardness,
    "optimal_ece": optimal_ece,
    "pep_effect": pep_effect,
    "calibration_by_level": calibration_by_level,
    "variance_over_runs": variance_over_runs,
}
"""Name → the function that computes it."""

__all__ = [
    "DIAGNOSTICS",
    "ByLevel",
    "HessianSpectrum",
    "PEPEffect",
    "SampleHardness",
    "calibration_by_level",
    "hessian_density",
    "hessian_spectrum",
    "hessian_trace",
    "optimal_ece",
    "pep_effect",
    "sample_hardness",
    "variance_over_runs",
]
