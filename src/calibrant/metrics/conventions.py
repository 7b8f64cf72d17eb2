"""The conventions behind a reported number, defined once and printed in every report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrant.errors import InputError
from calibrant.functional.probabilities import FLOOR

LEVEL = 0.95
"""Nominal coverage of every interval."""

REPLICATES = 1000
"""Default number of bootstrap replicates."""

BINS = 15
"""Default number of bins of confidence."""


def checked_seed(seed: Any) -> int:
    """The seed as an int that torch's generators accept; NumPy's integers are fine too."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not -(2**63) <= int(seed) < 2**63:
        raise InputError(f"seed={seed!r}; it must be a whole number of at most 64 bits")
    return int(seed)


@dataclass(frozen=True)
class Resampling:
    """How intervals are made: from which seed, with how many replicates, at which level."""

    seed: int = 0
    replicates: int = REPLICATES
    level: float = LEVEL

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))

    def describe(self, unit: str) -> dict[str, Any]:
        return {
            "level": self.level,
            "resampled": unit,
            "replicates": self.replicates,
            "seed": self.seed,
            "kind": (
                "BCa bootstrap for smooth metrics; Wilson for a proportion; for calibration errors the range of the "
                "population's binned error that a test accepts (debiased: its lower end is 0 when 'calibrated' is "
                "accepted, and a plug-in value that is mostly noise may lie above its upper end)"
            ),
            "about": "these intervals compare two predictors; to compare two methods, train each with several seeds",
        }


def conventions(
    *,
    bins: int = BINS,
    about: str = "top label",
    members: int = 1,
    binary: bool = False,
    split: str = "unknown",
    allow_reuse: bool = False,
    interval: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The contents of `Report.conventions`."""
    out: dict[str, Any] = {
        "bins": bins,
        "edges": "right-closed, ((b-1)/B, b/B], zero in the first",
        "equal_mass": "ties stay together: a run of equal confidences goes to the bin of its middle rank",
        "sums": "float64",
        "floor": FLOOR,
        "brier": "sum over classes",
        "refinement": "AUROC of confidence for correct vs incorrect, ties at mid-rank, ranked on log(1 - p_max)",
        "about": about,
        "members": members,
        "pooling": "mean probability" if members > 1 else None,
        "split": split,
        "interval": interval,
    }
    if binary:
        out["binary"] = "one column, read as the score of class 1"
    if allow_reuse:
        out["allow_reuse"] = "said: these items were also fitted on, so the numbers flatter the map"
    return out
