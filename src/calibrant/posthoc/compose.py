"""Two calibrators in a row: the second is fitted on what the first one makes of the same items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.map import Chain, FittedMap
from calibrant.types import Predictions


@dataclass(frozen=True)
class Composition(Calibrator):
    """`Composition(Temperature(), HistogramMass())`; on the command line `--method temperature+histogram_mass`."""

    first: Calibrator
    second: Calibrator
    map: ClassVar[type[FittedMap]] = Chain
    takes_members: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.first.name}+{self.second.name}"

    def solve(self, p: Predictions) -> FittedMap:
        one = self.first.fold(p)
        two = self.second.fold(one.predictions(p))
        return Chain((one, two))

    def settings(self) -> dict[str, Any]:
        return {"first": self.first.settings(), "second": self.second.settings()}
