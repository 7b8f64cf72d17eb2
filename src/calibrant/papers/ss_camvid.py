"""SS Tables 2 and E.4: U-Net on CamVid, with and without MC dropout, spatial and temporal smoothing.

One network has two rows of Table E.4: as it is (MC dropout: 50 passes) and smoothed in time (one pass a frame); Table 2
is its Bayesian half. Measured on the validation part: the only one that is a continuous video in the half-size set.
"""

from __future__ import annotations

from calibrant.papers.experiment import Experiment
from calibrant.papers.reported import said_of
from calibrant.training.recipes import RECIPES
from calibrant.training.recipes.ss import PASSES, suffix
from calibrant.training.settings import Choice

BLOCK = 15
"""Successive frames that an interval draws together: a second at 15 Hz."""
TEMPORAL = "temporal"
"""The variant that averages the current frame and the 5 before it."""


def experiment(table: str, dropout: bool, smooth: bool) -> Experiment:
    name = f"camvid_unet{suffix(0.5 * dropout, smooth)}"
    return Experiment(
        paper="ss",
        table=table,
        row=name,
        recipe=RECIPES[f"ss/{name}"],
        seeds=3,
        ensembles=(Choice("dropout", {"members": PASSES}),) if dropout else (),
        block=BLOCK,
        metrics=("accuracy", "nll", "brier", "ece", "auroc"),
        reported=said_of(f"ss/{table}/{name}"),
        note="frames of 180 × 240, the paper's of 360 × 480; on the validation part, the paper does not say which",
    )


EXPERIMENTS = (
    *(experiment("table2", True, smooth) for smooth in (False, True)),
    *(experiment("table_e4", dropout, smooth) for dropout in (False, True) for smooth in (False, True)),
)
