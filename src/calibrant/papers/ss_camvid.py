"""SS Tables 2 and E.4: U-Net on CamVid, with and without MC dropout, spatial and temporal smoothing.

One network has two rows of Table E.4: as it is (MC dropout: 50 passes) and smoothed in time (one pass a frame); Table 2
is its Bayesian half. Pixels are far too many for one array, so `benchmarks/segmentation_runs.py` measures these rows a
frame at a time, on the validation part: the only one that is a continuous video in the half-size set.
"""

from __future__ import annotations

from calibrant.papers.experiment import AS_TRAINED, Experiment
from calibrant.training.recipes import RECIPES
from calibrant.training.recipes.ss import PASSES, suffix
from calibrant.training.settings import Choice

TEMPORAL = "temporal"
"""The variant that averages the current frame and the 5 before it."""

# Table E.4: (MC dropout, spatial) → NLL, ACC %, ECE %, consistency %: without and with temporal smoothing
E4 = {
    (False, False): ((0.354, 92.3, 4.95, 95.1), (0.290, 92.5, 3.18, 96.3)),
    (False, True): ((0.318, 92.4, 4.54, 95.5), (0.278, 92.5, 3.03, 96.6)),
    (True, False): ((0.298, 92.5, 4.20, 95.4), (0.273, 92.6, 3.23, 96.4)),
    (True, True): ((0.284, 92.6, 3.96, 95.6), (0.260, 92.6, 2.71, 96.5)),
}
NAMES = ("nll", "accuracy", "ece", "consistency")


def named(row: tuple[float, ...]) -> dict[str, float]:
    """As fractions."""
    return {name: value if name == "nll" else value / 100 for name, value in zip(NAMES, row, strict=True)}


def experiment(table: str, dropout: bool, smooth: bool) -> Experiment:
    plain, temporal = E4[dropout, smooth]
    name = f"camvid_unet{suffix(0.5 * dropout, smooth)}"
    return Experiment(
        paper="ss",
        table=table,
        row=name,
        recipe=RECIPES[f"ss/{name}"],
        seeds=3,
        ensemble=Choice("dropout", {"members": PASSES}) if dropout else None,
        metrics=("accuracy", "nll", "brier", "ece", "auroc"),
        reported={"dropout" if dropout else AS_TRAINED: named(plain), TEMPORAL: named(temporal)},
        note="frames of 180 × 240, the paper's of 360 × 480; on the validation part, the paper does not say which",
    )


EXPERIMENTS = (
    *(experiment("table2", True, smooth) for smooth in (False, True)),
    *(experiment("table_e4", dropout, smooth) for dropout in (False, True) for smooth in (False, True)),
)
