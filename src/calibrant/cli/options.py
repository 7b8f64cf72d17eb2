"""Options that several verbs have, each written once (`help` says in which groups they stand)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.files.arrays import Keys

Json = Annotated[bool, typer.Option("--json", help="print JSON to stdout")]
Html = Annotated[Path | None, typer.Option(help="write an HTML report to this file")]
Intervals = Annotated[
    bool, typer.Option("--intervals/--no-intervals", help="leave out the 95% intervals, which is faster")
]
Metrics = Annotated[str | None, typer.Option(help="names, separated by commas (see `calibrant list metrics`)")]
Everything = Annotated[bool, typer.Option("--all", help="print every metric, not only the main six")]
Bins = Annotated[int, typer.Option(help="bins of confidence")]
BootstrapSeed = Annotated[int, typer.Option("--seed", help="seed of the bootstrap")]

LogitsKey = Annotated[str | None, typer.Option(help="name of the logits in the file")]
ProbsKey = Annotated[str | None, typer.Option(help="name of the probabilities in the file")]
LabelsKey = Annotated[str | None, typer.Option(help="name of the labels in the file")]
PredictedKey = Annotated[str | None, typer.Option(help="name of the predicted classes in a top-1 file")]
ConfidenceKey = Annotated[str | None, typer.Option(help="name of the confidences in a top-1 file")]
Labels = Annotated[Path | None, typer.Option(help="a .npy of labels, if the file has none")]
ClassAxis = Annotated[int, typer.Option(help="axis of the classes: 1 for logits [N, K, H, W]")]
IgnoreIndex = Annotated[int | None, typer.Option(help="label of items to ignore")]

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL", help="RUN/, timm:NAME, torchvision:NAME or package.module:factory[@WEIGHTS or @RUN/]"
    ),
]
DataRoot = Annotated[Path | None, typer.Option(help="folder of the data; by default CALIBRANT_DATA")]
Mean = Annotated[
    str | None,
    typer.Option(
        help="per channel, e.g. 0.5,0.5,0.5, or own; default: the model's, then a named data set's",
    ),
]
Std = Annotated[str | None, typer.Option(help="per channel, like --mean")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]


def reading(keys: Keys, class_axis: int, ignore_index: int | None) -> str:
    """How a file like these is read, as options of the command line, each after a space."""
    axis = "" if class_axis == -1 else f" --class-axis {class_axis}"
    return keys.words + axis + ("" if ignore_index is None else f" --ignore-index {ignore_index}")
