"""Calibratability (RC §4–5): how well *could* these predictions be calibrated, if a family were fitted on them?

RC's *optimal ECE* is the ECE at the temperature that is searched on the judged data themselves, "which is the lower
bound of ECE with temperatures searched on validation data" (§5.1). This module gives for every family the least NLL
that it reaches on these very items, the ECE of that fit, and, for temperature, the least ECE over RC's grid. Every
number is an *oracle*: it is fitted and judged on the same split, so it is a bound on what is possible, not a result.
The difference between the present value and the bound is the room. RC found that regularised training reduces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from calibrant.errors import InputError
from calibrant.functional.scores import reduce
from calibrant.metrics.evaluate import evaluate_scores
from calibrant.posthoc.fit import resolve
from calibrant.posthoc.temperature import Temperature
from calibrant.types import Predictions

FAMILIES = ("temperature", "histogram", "histogram_mass", "isotonic", "vector")
SAID = "oracle: fitted and judged on the same items; a bound, not a result"


@dataclass(frozen=True)
class Room:
    """What one family can reach on these items, and the room: the present value minus the bound."""

    family: str
    nll: float | None  # least NLL
    ece: float | None  # ECE of the fit with the least NLL
    optimal_ece: float | None  # least ECE over RC's grid for temperature; for other families the same as `ece`
    room_nll: float | None
    room_ece: float | None
    degrees: int
    temperature: float | None = None  # the one with the least NLL
    reason: str | None = None  # why the family could not be fitted

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None or name in ("nll", "ece")}


@dataclass(frozen=True)
class Calibratability:
    """`rows[0]` describes the predictions as they are; the other rows are oracles."""

    n: int
    rows: tuple[Room, ...]
    said: str = SAID

    def __getitem__(self, family: str) -> Room:
        return next(r for r in self.rows if r.family == family)

    def to_dict(self) -> dict[str, Any]:
        return {"n": self.n, "oracle": True, "said": self.said, "rows": [r.to_dict() for r in self.rows]}


def calibratability(
    predictions: Predictions, families: Sequence[str] = FAMILIES, *, bins: int = 15, ece_grid: bool = True
) -> Calibratability:
    """The room left for each family. `ece_grid=False` skips the search of 1,000 temperatures for the least ECE."""
    p = replace(predictions, origin=predictions.origin or "oracle", fitted_on="")
    now = _judged(p, bins)
    rows = [Room("as it is", now[0], now[1], now[1], 0.0 if now[0] is not None else None, 0.0, 0)]
    for family in families:
        calibrator = resolve(family, {})
        try:
            fitted = calibrator.fit_map(p)
        except InputError as error:
            rows.append(Room(family, None, None, None, None, None, 0, reason=str(error)))
            continue
        nll, ece = _judged(fitted.predictions(p), bins)
        optimal, T = ece, None
        if isinstance(calibrator, Temperature):
            T = float(fitted.summary()["temperature"])
            if ece_grid:
                best = Temperature(objective="ece", bins=bins).fit_map(p).record.certificate["ece"]
                optimal = min(best, ece) if ece is not None else best
        room_nll = None if nll is None or now[0] is None else now[0] - nll
        room_ece = None if optimal is None or now[1] is None else now[1] - optimal
        rows.append(Room(family, nll, ece, optimal, room_nll, room_ece, fitted.degrees, T))
    return Calibratability(p.n, tuple(rows))


def calibratability_curve(
    epochs: Iterable[Predictions], families: Sequence[str] = ("temperature",), **settings: Any
) -> list[dict[str, Any]]:
    """RC Fig. 4: one row per epoch (from 1) and family: `{"epoch", "family", "nll", "ece", "optimal_ece", …}`."""
    rows: list[dict[str, Any]] = []
    for epoch, p in enumerate(epochs, start=1):
        for room in calibratability(p, families, **settings).rows:
            rows.append({"epoch": epoch, **room.to_dict()})
    return rows


def _judged(p: Predictions, bins: int) -> tuple[float | None, float | None]:
    report = evaluate_scores(reduce(p, bins), metrics=["nll", "ece"])
    return report["nll"].value, report["ece"].value
