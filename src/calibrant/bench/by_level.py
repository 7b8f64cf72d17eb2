"""Calibration by adversarial robustness: the test items in ten levels, the least robust first (AR §3.1, Fig. 1).

    levels → variants `level_0` … `level_9`, of the network as it is and after each calibrator

The distances lie beside the attacked network, where `calibrant probe --what robustness` looks for them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from calibrant.attacks import levels
from calibrant.attacks.store import EDITION
from calibrant.data import Data
from calibrant.files import hashed
from calibrant.training import distances
from calibrant.types import Predictions, Split

LEVELS, COUNT, RULER = "levels", 10, "ddn"
MADE_BY = {"count": COUNT, "ruler": RULER, "edition": EDITION}
"""What decides the levels besides network and items."""
FILE = "levels.json"


def ask(members: Sequence[nn.Module], data: Data, run: Path, out: Path, device: torch.device) -> None:
    """Attack the test items, and write the level of each."""
    found = distances.measured(members, data, Split.TEST, run / distances.FOLDER, ruler=RULER, device=device)
    hashed.write(out / FILE, {"levels": levels(found.distance, COUNT).tolist()})


def parts(folder: Path, p: Predictions) -> Iterator[tuple[str, Predictions]]:
    """The items of each level."""
    level = torch.tensor(hashed.read(folder / FILE)["levels"])
    for number in range(COUNT):
        yield f"level_{number}", p.take((level == number).nonzero()[:, 0])
