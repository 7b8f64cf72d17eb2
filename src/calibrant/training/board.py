"""`--tensorboard`: the numbers of each epoch as TensorBoard's events under `RUN/tensorboard/`.

Tags: train/loss, train/accuracy, train/lr, train/images_per_second, and validation/NAME for each metric of an epoch. A
run that is resumed purges the events of epochs that it repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calibrant.errors import MissingDependencyError
from calibrant.training.evaluate import EPOCH_METRICS

FOLDER = "tensorboard"
TRAIN = {"loss": "loss", "train_accuracy": "accuracy", "lr": "lr", "images_per_second": "images_per_second"}


def check() -> None:
    """Before anything is trained."""
    if find_spec("tensorboard") is None:
        raise MissingDependencyError("--tensorboard needs the extra: pip install 'calibrant[tensorboard]'")


class Board:
    """Writes a row per epoch; begun at the number of finished epochs."""

    def __init__(self, folder: Path) -> None:
        check()
        self.folder = folder / FOLDER
        self._writer: Any = None

    def begin(self, epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.folder), purge_step=epoch + 1)

    def epoch(self, row: Mapping[str, Any]) -> None:
        named = {f"train/{tag}": row.get(key) for key, tag in TRAIN.items()}
        named |= {f"validation/{name}": row.get(name) for name in EPOCH_METRICS}
        for tag, value in named.items():
            if value is not None:
                self._writer.add_scalar(tag, value, row["epoch"])
        self._writer.flush()  # a kill loses no finished epoch

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
