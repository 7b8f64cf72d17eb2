"""SS Tables 2 and E.4: U-Net on CamVid, with and without MC dropout, spatial and temporal smoothing.

One network is two rows of Table E.4: as trained (MC dropout: 50 passes) and smoothed in time (one pass per frame).
Table 2 has the rows with MC dropout. The networks are measured on the validation part, the only part of the half-size
set that is a continuous video.
"""

from __future__ import annotations

from calibrant.papers.experiment import Experiment
from calibrant.training.recipes import RECIPES
from calibrant.training.recipes.ss import PASSES, suffix
from calibrant.training.settings import Choice

BLOCK = 15
"""How many successive frames an interval resamples together: a second at 15 Hz."""
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
        note="frames of 180 × 240, the paper's of 360 × 480; on the validation part, the paper does not say which",
    )


EXPERIMENTS = (
    *(experiment("table2", True, smooth) for smooth in (False, True)),
    *(experiment("table_e4", dropout, smooth) for dropout in (False, True) for smooth in (False, True)),
)
