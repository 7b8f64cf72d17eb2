"""calibrant: makes a neural network's confidence trustworthy, and proves it.

The public surface is the table below; each name loads its module on first use, so `import calibrant`
stays light (no Lightning, matplotlib, scikit-learn or torchmetrics until something needs them).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from calibrant.attacks.bounds import Bounds as Bounds
    from calibrant.attacks.levels import levels as levels
    from calibrant.attacks.robustness import robustness as robustness
    from calibrant.decisions.choose import decide as decide
    from calibrant.decisions.storage import load as load
    from calibrant.diagnostics.levels import calibration_by_level as calibration_by_level
    from calibrant.ensembles.dropout import MCDropout as MCDropout
    from calibrant.ensembles.pep import PEP as PEP
    from calibrant.ensembles.single import predict as predict
    from calibrant.ensembles.temporal import TemporalSmoothing as TemporalSmoothing
    from calibrant.errors import CalibrantWarning as CalibrantWarning
    from calibrant.functional.inputs import predictions as predictions
    from calibrant.metrics.compare import compare as compare
    from calibrant.metrics.evaluate import evaluate as evaluate
    from calibrant.nn.smoothing import Blur as Blur
    from calibrant.nn.smoothing import Prob as Prob
    from calibrant.nn.smoothing import Smooth as Smooth
    from calibrant.nn.smoothing import reference as reference
    from calibrant.nn.surgery import smooth as smooth
    from calibrant.nn.surgery import smoothed as smoothed
    from calibrant.nn.surgery import unsmooth as unsmooth
    from calibrant.posthoc.fit import fit as fit
    from calibrant.report.stress import stress as stress
    from calibrant.training.run import train as train
    from calibrant.types import Estimate as Estimate
    from calibrant.types import Predictions as Predictions
    from calibrant.types import Report as Report
    from calibrant.types import Split as Split

_PUBLIC = {
    "Blur": "calibrant.nn.smoothing",
    "Bounds": "calibrant.attacks.bounds",
    "CalibrantWarning": "calibrant.errors",
    "Estimate": "calibrant.types",
    "MCDropout": "calibrant.ensembles.dropout",
    "PEP": "calibrant.ensembles.pep",
    "Predictions": "calibrant.types",
    "Prob": "calibrant.nn.smoothing",
    "Report": "calibrant.types",
    "Smooth": "calibrant.nn.smoothing",
    "Split": "calibrant.types",
    "TemporalSmoothing": "calibrant.ensembles.temporal",
    "calibration_by_level": "calibrant.diagnostics.levels",
    "compare": "calibrant.metrics.compare",
    "decide": "calibrant.decisions.choose",
    "evaluate": "calibrant.metrics.evaluate",
    "fit": "calibrant.posthoc.fit",
    "levels": "calibrant.attacks.levels",
    "load": "calibrant.decisions.storage",
    "predict": "calibrant.ensembles.single",
    "predictions": "calibrant.functional.inputs",
    "reference": "calibrant.nn.smoothing",
    "robustness": "calibrant.attacks.robustness",
    "smooth": "calibrant.nn.surgery",
    "smoothed": "calibrant.nn.surgery",
    "stress": "calibrant.report.stress",
    "train": "calibrant.training.run",
    "unsmooth": "calibrant.nn.surgery",
}
"""Public name → the module that defines it, sorted. A test compares it with what the modules hold."""

_PACKAGES = (
    "attacks", "bench", "data", "decisions", "diagnostics", "ensembles", "errors", "files", "functional", "losses",
    "metrics", "nn", "papers", "posthoc", "report", "shifts", "targets", "training", "transforms", "types",
)  # fmt: skip
"""Families that `calibrant.NAME` reaches after a bare `import calibrant`, loaded on first use."""

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES and find_spec(f"calibrant.{name}") is not None:
        return import_module(f"calibrant.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
