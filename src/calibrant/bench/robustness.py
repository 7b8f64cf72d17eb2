"""Calibration by adversarial robustness (AR §3.1, Fig. 1), and a control: does robustness tell more than confidence?

    level_0 … level_9               tenths of the test items by robustness, the least robust first
    confidence_0 … confidence_9     tenths of the test items by confidence, the least confident first (AR, footnote 1)
    less_robust, more_robust        of every two neighbours in confidence, the less and the more robust one

Items of the last two variants are equally confident. If their calibration differs, robustness tells something that
confidence does not. Each variant is measured for the network as trained and after each calibrator. The distances are
stored beside the attacked network, where `calibrant probe --what robustness` finds them too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from calibrant.attacks import levels
from calibrant.attacks.store import EDITION
from calibrant.bench.ensembles import Loaded
from calibrant.files import hashed
from calibrant.functional.scores import reduce
from calibrant.training import distances
from calibrant.types import Predictions, Split

LEVELS, COUNT, RULER = "levels", 10, "ddn"
MADE_BY = {"count": COUNT, "ruler": RULER, "edition": EDITION}
"""The settings that decide the levels, besides network and items."""
FILE = "levels.json"


def rank_items(loaded: Loaded, out: Path) -> None:
    """Attack the test items and write the rank of each; the least robust has rank 0."""
    store = loaded.run / distances.FOLDER
    found = distances.load_or_measure(loaded.members, loaded.data, Split.TEST, store, ruler=RULER, device=loaded.device)
    hashed.write(out / FILE, {"rank": _ranks(found.distance).tolist()})


def parts(folder: Path, p: Predictions) -> Iterator[tuple[str, Predictions]]:
    """Yield the name and the items of each variant."""
    robust = torch.tensor(hashed.read(folder / FILE)["rank"])
    confident = _ranks(-reduce(p, classwise=False).log_error)
    for name, rank in (("level", robust), ("confidence", confident)):
        for number in range(COUNT):
            yield f"{name}_{number}", p.take((rank * COUNT // p.n == number).nonzero()[:, 0])
    less, more = split_neighbours(confident, robust)
    yield "less_robust", p.take(less)
    yield "more_robust", p.take(more)


def split_neighbours(confident: Tensor, robust: Tensor) -> tuple[Tensor, Tensor]:
    """Of every two neighbours in the confidence ranking, the less robust item, and the more robust one."""
    pairs = confident.argsort()[: len(confident) // 2 * 2].view(-1, 2)
    less, more = pairs.gather(1, robust[pairs].argsort(1)).unbind(1)
    return less, more


def _ranks(values: Tensor) -> Tensor:
    """Each item's rank in ascending order; ties keep their order."""
    return levels(values, len(values))
