"""Diagnostics explain why a network is calibrated or not. They read a trained model and never train one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibrant.diagnostics.ensemble_signs import EnsembleSigns, ensemble_signs
from calibrant.diagnostics.feature_fourier import FeatureFourier, feature_fourier
from calibrant.diagnostics.feature_neighbours import FeatureNeighbours, feature_neighbours
from calibrant.diagnostics.feature_variance import FeatureVariance, feature_variance
from calibrant.diagnostics.hardness import SampleHardness, sample_hardness
from calibrant.diagnostics.hessian import HessianSpectrum, hessian_density, hessian_spectrum, hessian_trace
from calibrant.diagnostics.intervals import Difference, paired_difference
from calibrant.diagnostics.landscape import Landscape, loss_landscape
from calibrant.diagnostics.levels import ByLevel, calibration_by_level
from calibrant.diagnostics.optimal_ece import optimal_ece
from calibrant.diagnostics.overfitting import overfitting
from calibrant.diagnostics.pep_effect import PEPEffect, pep_effect
from calibrant.diagnostics.pep_items import PEPItems, pep_items
from calibrant.diagnostics.sharpness import Sharpness, loss_sharpness
from calibrant.diagnostics.stability import variance_over_runs
from calibrant.diagnostics.under_attack import UnderAttack, under_attack
from calibrant.errors import suggest_names

DIAGNOSTICS: dict[str, Callable[..., Any]] = {
    "hessian_spectrum": hessian_spectrum,
    "hessian_density": hessian_density,
    "hessian_trace": hessian_trace,
    "loss_landscape": loss_landscape,
    "loss_sharpness": loss_sharpness,
    "sample_hardness": sample_hardness,
    "optimal_ece": optimal_ece,
    "feature_variance": feature_variance,
    "feature_fourier": feature_fourier,
    "feature_neighbours": feature_neighbours,
    "ensemble_signs": ensemble_signs,
    "pep_effect": pep_effect,
    "pep_items": pep_items,
    "overfitting": overfitting,
    "under_attack": under_attack,
    "calibration_by_level": calibration_by_level,
    "variance_over_runs": variance_over_runs,
}
"""Name → the function that computes it."""

__all__ = [
    "DIAGNOSTICS",
    "ByLevel",
    "Difference",
    "EnsembleSigns",
    "FeatureFourier",
    "FeatureNeighbours",
    "FeatureVariance",
    "HessianSpectrum",
    "Landscape",
    "PEPEffect",
    "PEPItems",
    "SampleHardness",
    "Sharpness",
    "UnderAttack",
    "calibration_by_level",
    "ensemble_signs",
    "feature_fourier",
    "feature_neighbours",
    "feature_variance",
    "hessian_density",
    "hessian_spectrum",
    "hessian_trace",
    "loss_landscape",
    "loss_sharpness",
    "optimal_ece",
    "overfitting",
    "paired_difference",
    "pep_effect",
    "pep_items",
    "sample_hardness",
    "under_attack",
    "variance_over_runs",
]

suggest_names(__name__)
