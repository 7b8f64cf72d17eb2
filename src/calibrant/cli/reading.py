"""Options that say how files of predictions are read, for every verb that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from calibrant import files
from calibrant.cli.options import ClassAxis
from calibrant.errors import FileError, InputError
from calibrant.files.columns import OtherColumns
from calibrant.types import Predictions

KEYS = ("logits_key", "probs_key", "labels_key", "predicted_key", "confidence_key")


@dataclass(frozen=True)
class Reading:
    """The names of arrays or columns, the file of the labels, and the axis of the classes."""

    logits_key: Annotated[str | None, typer.Option(help="name of the logits in the file")] = None
    probs_key: Annotated[str | None, typer.Option(help="name of the probabilities in the file")] = None
    labels_key: Annotated[str | None, typer.Option(help="name of the labels in the file")] = None
    predicted_key: Annotated[str | None, typer.Option(help="name of the predicted classes in a top-1 file")] = None
    confidence_key: Annotated[str | None, typer.Option(help="name of the confidences in a top-1 file")] = None
    labels: Annotated[Path | None, typer.Option(help="a .npy of labels, if the predictions have none")] = None
    class_axis: ClassAxis = -1
    ignore_index: Annotated[int | None, typer.Option(help="label of items to ignore")] = None

    @property
    def keys(self) -> files.Keys:
        return files.Keys(*(getattr(self, name) for name in KEYS))

    @property
    def words(self) -> str:
        """These options as text for a command line, each after a space."""
        axis = "" if self.class_axis == -1 else f" --class-axis {self.class_axis}"
        return self.keys.words + axis + ("" if self.ignore_index is None else f" --ignore-index {self.ignore_index}")

    def read(self, path: Path, group_key: str | None = None) -> Predictions:
        return files.read(
            path,
            labels=self.labels,
            **{name: getattr(self, name) for name in KEYS},
            group_key=group_key,
            class_axis=self.class_axis,
            ignore_index=self.ignore_index,
        )

    def read_calibration(self, path: Path) -> Predictions:
        """Predictions on the items to fit on: their file holds logits and labels, and may hold nothing else."""
        return replace(self, labels=None, predicted_key=None, confidence_key=None).read(path)

    def read_new(self, path: Path) -> tuple[Predictions, bool]:
        """Predictions on items that may have no labels, and whether they have labels."""
        return files.read_new(
            path, self.keys, labels=self.labels, class_axis=self.class_axis, ignore_index=self.ignore_index
        )

    def others(self, source: Path, target: Path) -> OtherColumns | None:
        """The columns of `source` that a map leaves as they are, if source and target are tables."""
        return files.others(source, target, self.keys, self.labels)

    def each(self, preds: Sequence[Path]) -> list[tuple[Path, Reading]]:
        """Every file of predictions, with the options to read it.

        A `.npy` takes the next `.npy` as its labels unless `--labels` names them. A key holds one name for all files,
        or one name per file, separated by commas.
        """
        paths = [(path, self.labels) for path in preds] if self.labels is not None else _pairs(preds)
        own = [self._keys_of(name, len(paths)) for name in KEYS]
        named = (dict(zip(KEYS, keys, strict=True)) for keys in zip(*own, strict=True))
        return [(path, replace(self, labels=labels, **k)) for (path, labels), k in zip(paths, named, strict=True)]

    def _keys_of(self, name: str, count: int) -> list[str | None]:
        given = getattr(self, name)
        names = [] if given is None or count < 2 else [each.strip() for each in given.split(",")]
        if len(names) < 2:
            return [given] * count
        if len(names) != count:
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} {given!r} has {len(names)} names for {count} files; pass one name, or one for each file"
            )
        return list(names)


def _pairs(preds: Sequence[Path]) -> list[tuple[Path, Path | None]]:
    found: list[tuple[Path, Path | None]] = []
    waiting: Path | None = None
    for path in preds:
        if path.suffix != ".npy":
            found.append((path, None))
        elif waiting is None:
            waiting = path
        else:
            found.append((waiting, path))
            waiting = None
    if waiting is not None:
        files.existing(waiting)
        raise FileError(f"{waiting}: a .npy of scores needs a .npy of labels after it, or --labels FILE.npy")
    return found
