"""Post-hoc calibration: one calibrator per file, a table of them, and the automatic choice.

How to write a calibrator (imitate `temperature.py`; a method of the top label imitates `histogram.py`):

1. A frozen map, `@dataclass(frozen=True, eq=False) class XMap(FittedMap)`: float64 tensors are its parameters, plain
   JSON values its settings; `method = "x"`, `keeps_label = …`, and `transform(logits[..., N, K] float64) -> logits`.
   Logits of −inf and ±1e4 must not give NaN, and a class with −inf keeps it (`map.still_impossible`).
   `k` is the number of classes, if the parameters depend on it. `step_functions.py` looks up bins, steps and knots, and
   also works in exported graphs.
   A map of the top label's confidence derives from `TopLabelMap` and writes `confidence(top)` instead.
2. Frozen settings, `@dataclass(frozen=True) class X(Calibrator)`: `name`, `map`, `cost`, a default for every field,
   `solve(p) -> XMap(…, record=certified({…}))`. In `solve`, `p.logits` is [N, K]: members have been pooled. The base
   class checks numbers and `Literal`s; other rules go into `__post_init__` with `require`, too few items with `need`.
3. One line in _TABLE below. Storage, the laws (tests/test_laws_calibrators.py), guard, `auto` and `fit` then work.
"""

from __future__ import annotations

from calibrant.errors import suggest_names
from calibrant.posthoc.attach import attach
from calibrant.posthoc.bbq import Bbq
from calibrant.posthoc.beta import Beta
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.confidence_model import ConfidenceModel
from calibrant.posthoc.confidnet import ConfidNet
from calibrant.posthoc.dirichlet import Dirichlet, Matrix
from calibrant.posthoc.ets import Ets
from calibrant.posthoc.histogram import Histogram, HistogramMass
from calibrant.posthoc.irm import Irm
from calibrant.posthoc.isotonic import CentredIsotonic, Isotonic
from calibrant.posthoc.map import Chain, FitRecord, FittedMap, Identity, Pool
from calibrant.posthoc.order_preserving import OrderPreserving
from calibrant.posthoc.platt import Platt
from calibrant.posthoc.scaling_binning import ScalingBinning
from calibrant.posthoc.spline import Spline
from calibrant.posthoc.storage import load
from calibrant.posthoc.structured import StructuredMatrix, StructuredVector
from calibrant.posthoc.temperature import Temperature
from calibrant.posthoc.trust_score import TrustScore
from calibrant.posthoc.vector import Vector
from calibrant.posthoc.venn_abers import VennAbers

_TABLE: tuple[type[Calibrator], ...] = (
    Temperature,
    Histogram,
    HistogramMass,
    Isotonic,
    CentredIsotonic,
    Platt,
    Beta,
    Vector,
    StructuredVector,
    StructuredMatrix,
    Dirichlet,
    Matrix,
    Ets,
    Irm,
    Spline,
    ScalingBinning,
    VennAbers,
    Bbq,
    OrderPreserving,
)

CALIBRATORS: dict[str, type[Calibrator]] = {c.name: c for c in _TABLE}
"""Name → calibrator."""

_MODELS: tuple[type[ConfidenceModel], ...] = (ConfidNet, TrustScore)

CONFIDENCES: dict[str, type[ConfidenceModel]] = {c.name: c for c in _MODELS}
"""Name → confidence model, which reads features and replaces the confidence. `auto` does not try them."""

_MADE: tuple[type[FittedMap], ...] = (Identity, Pool, *(m for c in (*_TABLE, *_MODELS) for m in (c.map, *c.maps)))

MAPS: dict[str, type[FittedMap]] = {m.method: m for m in _MADE}
"""Method in a saved header → map class. A chain is rebuilt from its parts."""

__all__ = [
    "CALIBRATORS",
    "CONFIDENCES",
    "MAPS",
    "Calibrator",
    "Chain",
    "FitRecord",
    "FittedMap",
    "Identity",
    "Pool",
    "attach",
    "load",
]

suggest_names(__name__)
