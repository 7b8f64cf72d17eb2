"""Calibration by adversarial robustness (AR §3.1, Fig. 1), and the control: is it more than confidence tells?

    level_0 … level_9               tenths of the test items by robustness, the least robust first
    confidence_0 … confidence_9     the same by confidence (AR, footnote 1)
    less_robust, more_robust        of every two neighbours in confidence, the less robust one and the more robust one

The last two are equally confident, so where their calibration differs, robustness says what confidence does not. Each
is a variant, of the network as it is and after each calibrator. The distances lie beside the attacked network, where
`calibrant probe --what robustness` looks for them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant.attacks import levels
from calibrant.attacks.store import EDITION
from calibrant.data import Data
from calibrant.files import hashed
from calibrant.functional.scores import reduce
from calibrant.training import distances
from calibrant.types import Predictions, Split

LEVELS, COUNT, RULER = "levels", 10, "ddn"
MADE_BY = {"count": COUNT, "ruler": RULER, "edition": EDITION}
"""What decides the levels besides network and items."""
FILE = "levels.json"


def ask(members: Sequence[nn.Module], data: Data, run: Path, out: Path, device: torch.device) -> None:
    """Attack the test items, and write the rank of each, the least robust first."""
    found = distances.measured(members, data, Split.TEST, run / distances.FOLDER, ruler=RULER, device=device)
    hashed.write(out / FILE, {"rank": _ranks(found.distance).tolist()})


def parts(folder: Path, p: Predictions) -> Iterator[tuple[str, Predictions]]:
    """The items of each variant."""
    robust = torch.tensor(hashed.read(folder / FILE)["rank"])
    sure = _ranks(-reduce(p, classwise=False).log_error)
    for name, rank in (("level", robust), ("confidence", sure)):
        for number in range(COUNT):
            yield f"{name}_{number}", p.take((rank * COUNT // p.n == number).nonzero()[:, 0])
    less, more = twins(sure, robust)
    yield "less_robust", p.take(less)
    yield "more_robust", p.take(more)


def twins(sure: Tensor, robust: Tensor) -> tuple[Tensor, Tensor]:
    """Of every two neighbours in the first ranking, the one that is lower in the second, and the other."""
    pairs = sure.argsort()[: len(sure) // 2 * 2].view(-1, 2)
    less, more = pairs.gather(1, robust[pairs].argsort(1)).unbind(1)
    return less, more


def _ranks(values: Tensor) -> Tensor:
    """Each item's place in ascending order, ties by their order: a level of its own."""
    return levels(values, len(values))
