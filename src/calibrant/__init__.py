"""calibrant: makes a neural network's confidence trustworthy, and proves it.

The public names are in the table below. Each loads its module on first use, so that `import calibrant` stays light: no
Lightning, matplotlib, scikit-learn or torchmetrics until something needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from calibrant.attacks.bounds import Bounds as Bounds
    from calibrant.attacks.robustness import levels as levels
    from calibrant.attacks.robustness import robustness as robustness
    from calibrant.decisions.attach import attach as attach
    from calibrant.decisions.choose import decide as decide
    from calibrant.decisions.export import export as export
    from calibrant.decisions.storage import load as load
    from calibrant.diagnostics.levels import calibration_by_level as calibration_by_level
    from calibrant.ensembles.deep import DeepEnsemble as DeepEnsemble
    from calibrant.ensembles.dropout import MCDropout as MCDropout
    from calibrant.ensembles.pep import PEP as PEP
    from calibrant.ensembles.prediction import predict as predict
    from calibrant.ensembles.swa import SWA as SWA
    from calibrant.ensembles.swag import SWAG as SWAG
    from calibrant.ensembles.temporal import TemporalSmoothing as TemporalSmoothing
    from calibrant.errors import CalibrantWarning as CalibrantWarning
    from calibrant.files import read as read
    from calibrant.functional.inputs import predictions as predictions
    from calibrant.metrics.compare import compare as compare
    from calibrant.metrics.evaluate import evaluate as evaluate
    from calibrant.metrics.torchmetrics_adapter import CalibrationPanel as CalibrationPanel
    from calibrant.nn.smoothing import Blur as Blur
    from calibrant.nn.smoothing import Prob as Prob
    from calibrant.nn.smoothing import Smooth as Smooth
    from calibrant.nn.smoothing import reference as reference
    from calibrant.nn.surgery import smooth as smooth
    from calibrant.nn.surgery import smoothed as smoothed
    from calibrant.nn.surgery import unsmooth as unsmooth
    from calibrant.posthoc.estimator import CalibrantClassifier as CalibrantClassifier
    from calibrant.posthoc.fit import fit as fit
    from calibrant.posthoc.onnx_export import to_onnx as to_onnx
    from calibrant.report.stress import stress as stress
    from calibrant.training.run import train as train
    from calibrant.types import Estimate as Estimate
    from calibrant.types import Predictions as Predictions
    from calibrant.types import Report as Report
    from calibrant.types import Split as Split

_PUBLIC = {
    "Blur": "calibrant.nn.smoothing",
    "Bounds": "calibrant.attacks.bounds",
    "CalibrantClassifier": "calibrant.posthoc.estimator",
    "CalibrantWarning": "calibrant.errors",
    "CalibrationPanel": "calibrant.metrics.torchmetrics_adapter",
    "DeepEnsemble": "calibrant.ensembles.deep",
    "Estimate": "calibrant.types",
    "MCDropout": "calibrant.ensembles.dropout",
    "PEP": "calibrant.ensembles.pep",
    "Predictions": "calibrant.types",
    "Prob": "calibrant.nn.smoothing",
    "Report": "calibrant.types",
    "SWA": "calibrant.ensembles.swa",
    "SWAG": "calibrant.ensembles.swag",
    "Smooth": "calibrant.nn.smoothing",
    "Split": "calibrant.types",
    "TemporalSmoothing": "calibrant.ensembles.temporal",
    "attach": "calibrant.decisions.attach",
    "calibration_by_level": "calibrant.diagnostics.levels",
    "compare": "calibrant.metrics.compare",
    "decide": "calibrant.decisions.choose",
    "evaluate": "calibrant.metrics.evaluate",
    "export": "calibrant.decisions.export",
    "fit": "calibrant.posthoc.fit",
    "levels": "calibrant.attacks.robustness",
    "load": "calibrant.decisions.storage",
    "predict": "calibrant.ensembles.prediction",
    "predictions": "calibrant.functional.inputs",
    "read": "calibrant.files",
    "reference": "calibrant.nn.smoothing",
    "robustness": "calibrant.attacks.robustness",
    "smooth": "calibrant.nn.surgery",
    "smoothed": "calibrant.nn.surgery",
    "stress": "calibrant.report.stress",
    "to_onnx": "calibrant.posthoc.onnx_export",
    "train": "calibrant.training.run",
    "unsmooth": "calibrant.nn.surgery",
}
"""Public name → the module that defines it, sorted. A test checks it against the imports above."""

_PACKAGES = (
    "attacks", "bench", "data", "decisions", "diagnostics", "ensembles", "errors", "files", "functional",
    "integrations", "losses", "metrics", "nn", "papers", "posthoc", "report", "shifts", "targets", "training",
    "transforms", "types",
)  # fmt: skip
"""Packages that `calibrant.NAME` loads on first use, after a bare `import calibrant`."""

_SEARCHED = ("attacks", "ensembles", "losses", "posthoc", "targets", "transforms")
"""Packages whose members are suggested for a wrong name."""

_MEANT = {
    "advise": "from calibrant.posthoc.advise import advise",
    "audit": "evaluate",
    "calibrate": "fit",
    "conformal": "decide(predictions, set_coverage=0.9)",
    "dataframe": "evaluate(df, labels_key=…)",
    "ece": "evaluate(logits, labels).ece",
    "auroc": "evaluate(logits, labels).auroc",
    "label_smoothing": "targets.Smoothing",
    "plan": "from calibrant.metrics.evaluate import plan",
    "recalibrate": "fit",
    "reliability_diagram": "evaluate(logits, labels).to_html(path)",
    "save": "predictions(logits, labels).save(path)",
    "temperature_scaling": "fit('temperature', logits, labels)",
    "threshold": "decide",
}
"""Name that people guess → what to use instead."""

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        globals()[name] = found = _version()
        return found
    if name in _PACKAGES:
        return import_module(f"calibrant.{name}")
    if name not in _PUBLIC:
        near = None if name.startswith("_") else _meant(name)
        hint = f"; did you mean {near}?" if near else ""
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}{hint}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def _version() -> str:
    """The version of the installed package, or, in a source tree that is not installed, that of pyproject.toml."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("calibrant")
    except PackageNotFoundError:
        import tomllib
        from pathlib import Path

        project = Path(__file__).parents[2] / "pyproject.toml"
        return str(tomllib.loads(project.read_text("utf-8"))["project"]["version"])


def _meant(name: str) -> str | None:
    """The public name, or the member of a package, that was probably meant by a name that does not exist."""
    from calibrant.errors import nearest

    inside = {member: f"{family}.{member}" for family in _SEARCHED for member in __getattr__(family).__all__}
    known = inside | {public: public for public in (*_PACKAGES, *_PUBLIC)} | _MEANT
    near = nearest(name, known)
    if near is None or known[near].startswith("from "):
        return None if near is None else known[near]
    return f"calibrant.{known[near]}"


def __dir__() -> list[str]:
    return sorted([*_PUBLIC, *_PACKAGES, "__version__"])
