"""Small trainings on scikit-learn's digits: seconds each on one core, for the demo, tutorials and tests. All ours."""

from __future__ import annotations

from dataclasses import replace

from calibrant.training.optimiser import Optimiser, Schedule
from calibrant.training.recipe import DataSettings, Recipe
from calibrant.training.settings import Choice

CROSS_ENTROPY = Recipe(
    name="digits/cross_entropy",
    about="digits, MLP 3×200, cross-entropy",
    data=DataSettings("digits"),
    network=Choice("mlp"),
    optimiser=Optimiser("adam", lr=2e-3),
    schedule=Schedule("cosine"),
    epochs=60,
    batch=64,
)


def variant(name: str, about: str, **changes: object) -> Recipe:
    return replace(CROSS_ENTROPY, name=f"digits/{name}", about=f"digits, MLP 3×200, {about}", **changes)  # type: ignore[arg-type]


RECIPES = (
    CROSS_ENTROPY,
    variant("focal", "focal loss, γ = 3", loss=Choice("focal", {"gamma": 3.0})),
    variant("inverse_focal", "inverse focal loss, γ̄ = 2", loss=Choice("inverse_focal", {"gamma": 2.0})),
    variant("smoothing", "label smoothing, ε = 0.05", targets=Choice("smoothing", {"epsilon": 0.05})),
    variant("adals", "adaptive label smoothing (AdaLS), α = 0.05", targets=Choice("adals", {"alpha": 0.05})),
    variant("mixup", "mixup, α = 0.2", transforms=(Choice("mixup", {"alpha": 0.2}),)),
    variant("lp_norm", "L1 norm of the logits, 0.01", penalties=(Choice("lp_norm", {"weight": 0.01}),)),
    variant("entropy", "entropy regularisation, β = 0.1", penalties=(Choice("entropy", {"weight": 0.1}),)),
    variant("ccat", "CCAT, PGD within 0.03", transforms=(Choice("ccat", {"epsilon": 0.03}),)),
    variant("deep", "a deep ensemble of five", members=5),
)
