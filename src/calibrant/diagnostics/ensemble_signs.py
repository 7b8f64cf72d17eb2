"""Does a network behave like an ensemble of another? The three signs of SS §2.2 and App. D, and one verdict.

    lower variance of feature maps (Prop. 2.1), less high frequency in them (Prop. 2.2), a flatter loss (Prop. 2.3)

Each sign is a paired difference, item by item or mini-batch by mini-batch. The three share a level of 5%.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calibrant.diagnostics.intervals import Difference, paired_difference

SIGNS = {
    "variance": "feature maps that vary less",
    "high_frequency": "less high frequency",
    "sharpness": "a flatter loss",
}
"""Name → the sign of an ensemble, in words."""


@dataclass(frozen=True)
class EnsembleSigns:
    """The difference network − reference for each sign; an ensemble's are below 0."""

    differences: dict[str, Difference]

    @property
    def shown(self) -> list[str]:
        """The signs that the network shows: beyond noise, and below 0."""
        return [name for name, d in self.differences.items() if d.beyond and (d.estimate.value or 0) < 0]

    @property
    def opposite(self) -> list[str]:
        """The signs that point the other way: beyond noise, and above 0."""
        return [name for name, d in self.differences.items() if d.beyond and name not in self.shown]

    @property
    def verdict(self) -> str:
        """A sentence without its subject, the network's name."""
        if len(self.shown) == len(SIGNS):
            return "shows all three signs of an ensemble: " + ", ".join(SIGNS.values())
        within = [name for name in SIGNS if name not in (*self.shown, *self.opposite)]
        parts = [
            f"{words} {', '.join(SIGNS[name] for name in names)}"
            for words, names in (("it has", self.shown), ("the opposite of", self.opposite), ("within noise:", within))
            if names
        ]
        return f"shows {len(self.shown)} of the three signs of an ensemble; " + "; ".join(parts)


def ensemble_signs(
    variance: tuple[Tensor, Tensor],
    high_frequency: tuple[Tensor, Tensor],
    sharpness: tuple[Tensor, Tensor],
    comparisons: int = 1,
) -> EnsembleSigns:
    """Whether a network has lower feature-map variance, less high frequency and a flatter loss than a reference.

    Each is a pair (reference, network) of vectors over the same items or mini-batches: `FeatureVariance.at_ends`,
    `FeatureFourier.high` and `HessianSpectrum.largest`. `comparisons` networks share the 5%.
    """
    pairs = dict(zip(SIGNS, (variance, high_frequency, sharpness), strict=True))
    return EnsembleSigns({name: paired_difference(a, b, len(SIGNS) * comparisons) for name, (a, b) in pairs.items()})
