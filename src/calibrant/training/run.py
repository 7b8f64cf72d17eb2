"""From a recipe and a folder to a run: trained (or resumed), predicted, recorded.

`RUN/` holds recipe.json, environment.json, data.json, log.jsonl, checkpoint/, metrics.json, and validation.npz,
calibration.npz and test.npz, which audit, fit and compare read as they are. `epochs/` exists on request, targets.json
for adaptive targets, and levels.json and `vanilla/` (the attacked twin) for targets that need robustness levels.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from calibrant.data import Data, stored_name
from calibrant.data import load as load_data
from calibrant.data.batches import normalisation
from calibrant.data.label_maps import check_common_mark
from calibrant.data.records import check_inputs
from calibrant.data.torch_dataset import Given as OwnData
from calibrant.display import Rows, Shown
from calibrant.errors import InputError
from calibrant.files import hashed, write
from calibrant.metrics.evaluate import evaluate
from calibrant.training import checkpoint, levels, run_folder
from calibrant.training.environment import enough_threads, recorded_threads
from calibrant.training.epochs import keep_top_logits, keep_validation, keep_weights
from calibrant.training.evaluate import summary
from calibrant.training.loop import Loop, Refresh
from calibrant.training.networks import Own, check_compatible, networks, with_own
from calibrant.training.progress import Progress, TensorBoard
from calibrant.training.recipe import Recipe, read
from calibrant.types import SCHEMA, Predictions, Report, Split, jsonable

if TYPE_CHECKING:
    from lightning.fabric import Fabric

PREDICTED = (Split.VALIDATION, Split.CALIBRATION, Split.TEST)
PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed"}
RUN_METRICS = ("accuracy", "nll", "brier", "ece", "ece_mass", "auroc", "aurc", "eaurc", "gap")


@dataclass(frozen=True)
class How:
    """How a run is carried out. Nothing here changes what it computes."""

    device: str = "auto"
    devices: int = 1
    root: str | Path | None = None  # of the data
    every: int = 1  # epochs between checkpoints
    keep_epochs: bool = False  # store each epoch's validation predictions and the training part's top logits
    keep_weights: int = 0  # store the weights of this many last epochs, for SWA, SWAG and snapshots
    tensorboard: bool = False  # write events of every epoch to RUN/tensorboard
    quiet: bool = False
    listen: Callable[[int, Predictions], None] | None = None  # after each epoch: (finished epochs, validation)
    refresh: Refresh | None = None  # computes robustness levels; None: `calibrant.training.levels`
    levels: str | Path | None = None  # a run or a robustness folder that has them; None: they are measured
    handed: Mapping[str, Any] = field(default_factory=dict)  # what a recipe cannot write: CCAT's `attack`
    factory: str | None = None  # the recipe's data as `package.module:factory`, if the user typed it
    network: Own | None = None  # likewise the recipe's network; or a network, or a function that makes one


class TrainingResult(Shown, dict[str, Any]):
    """The content of `metrics.json`, shown as the verdict and the main numbers.

    `result["metrics"]["test"]["ece"]` is a number; `result.report` has the same predictions' metrics with intervals.
    """

    def __init__(self, record: Mapping[str, Any], predictions: Predictions, run: Path | None) -> None:
        super().__init__(record)
        self.predictions = predictions  # on the test split, or on the last split that the data has
        self.run = run  # the folder; None if nothing was kept

    @cached_property
    def report(self) -> Report:
        """Every metric of the predictions, with intervals."""
        return evaluate(self.predictions)

    @property
    def verdict(self) -> str:
        """The finding in one sentence: "overconfident: says 97%, is right 91%"."""
        return self.report.verdict

    def _shown(self) -> tuple[str, Rows]:
        title, rows = self.report._shown()
        return title, [*rows, ("split", self.predictions.split.value), ("run", str(self.run or "not kept"))]


Given = Data | OwnData | Mapping[str, OwnData]
"""Data that may replace the data set named in a recipe."""


def train(
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    how: How = How(),  # noqa: B008
    data: Given | None = None,
    network: Own | None = None,
) -> TrainingResult:
    """Train a recipe (or its name, or a TOML file) in the folder `out`, and return the content of `metrics.json`.

    The result is a dict that shows the verdict and the main numbers. A run that was stopped continues from its last
    checkpoint. `data` and `network` replace those of the recipe: a data set or a pair of arrays (x, y), and a network
    (which is trained in place) or a function that makes one. Without `out` only the result is kept.
    """
    recipe = recipe if isinstance(recipe, Recipe) else read(recipe)
    if network is not None:
        how = replace(how, network=network)
    if how.network is not None:
        recipe = with_own(recipe, how.network)
    if recipe.selection is not None:
        raise InputError("this recipe has a selection; use calibrant.training.select")
    if how.tensorboard:
        TensorBoard.check_installed()
    if out is None:
        with TemporaryDirectory(prefix="calibrant-") as folder:
            result = train(recipe, folder, how, data)
            result.run = None
            return result
    with run_folder.alone_in(Path(out)):
        return _run(recipe, Path(out), how, data)


def _run(recipe: Recipe, folder: Path, how: How, data: Given | None) -> TrainingResult:
    run_folder.check_recipe(folder, recipe)
    fabric = make_fabric(recipe, how)
    loaded = data_of(recipe, how, data)
    run_folder.check_data(folder, loaded)
    started = checkpoint.exists(folder / "checkpoint")
    with enough_threads(loaded.shape, recipe.batch, fabric.device, recorded_threads(folder) if started else None):
        loop = _loop(recipe, folder, how, loaded, fabric)  # a mistake raises here, before anything is written
        levels.check(recipe, how, loaded)
        if fabric.is_global_zero:
            run_folder.write_records(folder, recipe, loaded, fabric)
        fabric.barrier()
        if how.refresh is None and levels.are_needed(recipe):
            source = levels.LevelSource(recipe, folder, how, loaded, fabric.device)
            source.prepare()  # before the loop, so that each stage has its own bar
            loop.refresh = source
        return _train_and_record(loop, folder)


def data_of(recipe: Recipe, how: How, given: Given | None = None) -> Data:
    """The data of the recipe, or the caller's own, checked. What is not split yet is split by the recipe."""
    found = given if isinstance(given, Data) else _read_data(recipe, how, given)
    check_inputs(found)
    return found


def _read_data(recipe: Recipe, how: How, given: OwnData | Mapping[str, OwnData] | None) -> Data:
    d = recipe.data
    name: Any = stored_name(d.name, "the recipe", how.factory) if given is None else given
    # a recipe's sizes are for its own data: the caller's parts stay whole, and missing parts are cut from train
    whole = () if given is None else tuple(given) if isinstance(given, Mapping) else ("train",)
    sizes = {part: size for part, size in (d.sizes or {}).items() if part not in whole}
    found = load_data(name, root=how.root, seed=d.seed, sizes=sizes, shape=d.shape, ignore_index=d.ignore_index)
    check_common_mark(found.splits, found.name if given is not None else d.name)
    return found


def _loop(recipe: Recipe, folder: Path, how: How, loaded: Data, fabric: Fabric) -> Loop:
    _ = loaded[Split.TRAIN], loaded[Split.VALIDATION]  # raises now if one is missing
    progress = Progress(
        recipe.name or recipe.network.name,
        recipe.epochs,
        folder / "log.jsonl" if fabric.is_global_zero else None,
        quiet=how.quiet or not fabric.is_global_zero,
        tensorboard=TensorBoard(folder) if how.tensorboard and fabric.is_global_zero else None,
    )

    def listen(epoch: int, validation: Predictions) -> None:
        weights = epoch > recipe.epochs - how.keep_weights
        if how.keep_epochs or weights:
            (folder / "epochs").mkdir(exist_ok=True)
        if how.keep_epochs:
            keep_validation(folder, epoch, validation)
            keep_top_logits(folder, epoch, loop.top_logits(Split.TRAIN), len(loaded.classes))
        if weights:
            keep_weights(folder, epoch, [m.predictor for m in loop.members])
        if how.listen is not None:
            how.listen(epoch, validation)

    loop = Loop(
        recipe,
        loaded,
        fabric,
        networks(recipe, loaded, how.network),
        folder / "checkpoint",
        how.every,
        how.refresh,
        how.handed,
        listen,
        progress,
    )
    check_compatible(recipe.network.name, loaded, loop.members[0].model, loop.parts.criterion)
    if not progress.quiet:
        progress.line(f"inputs: {normalisation(loaded[Split.TRAIN], loaded.mean, loaded.std)}")
    return loop


def _train_and_record(loop: Loop, folder: Path) -> TrainingResult:
    """Train the remaining epochs, predict, record."""
    recipe, loaded, fabric = loop.recipe, loop.data, loop.fabric
    start = time.perf_counter()
    history = loop.run()
    result: dict[str, Any] = {}
    for split in PREDICTED:
        if split in loaded.splits:
            p = loop.predict(split)
            result[split.value] = summary(p, RUN_METRICS) | {"n": p.n}
            if fabric.is_global_zero:
                write(folder / f"{split.value}.npz", p)
    metrics = {
        "schema": SCHEMA,
        "recipe": recipe.name,
        "key": recipe.key(),
        "engine": loop.engine,
        "epochs": len(history),
        "train_seconds": sum(row["seconds"] for row in history),
        "images_per_second": history[-1]["images_per_second"],
        "train_accuracy": history[-1]["train_accuracy"],  # last epoch, augmented, during training
        "wall_seconds": time.perf_counter() - start,
        "metrics": result,
    }
    if fabric.is_global_zero:
        record = getattr(loop.parts.policy, "record", None)
        if record is not None:
            hashed.write(folder / "targets.json", {"schema": SCHEMA, **record()})
        hashed.write(folder / "metrics.json", jsonable(metrics))
    fabric.barrier()
    return TrainingResult(metrics, p, folder)


def make_fabric(recipe: Recipe, how: How) -> Fabric:
    """Lightning Fabric for the device, the precision and the processes, launched."""
    from lightning.fabric import Fabric

    kind = how.device
    if how.devices < 1:
        raise InputError(f"devices is {how.devices}; a run needs at least one process")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in ("cpu", "cuda"):
        raise InputError(f"unknown device {how.device!r}; use auto, cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', but torch sees no CUDA device; use --device cpu")
    if how.devices > 1 and "graph" in recipe.engine:
        raise InputError("engine 'graph' runs in one process; use --set engine=eager with --devices")
    with _without_tips():
        fabric = Fabric(
            accelerator=kind,
            devices=how.devices,
            strategy="ddp" if how.devices > 1 else "auto",
            precision=PRECISIONS[recipe.precision],  # type: ignore[arg-type]
        )
        fabric.launch()
    return fabric


@contextmanager
def _without_tips() -> Iterator[None]:
    """Keep Lightning from announcing mixed precision and matrix multiplication in every process."""
    from lightning_utilities.core import rank_zero

    level = rank_zero.log.level
    rank_zero.log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        rank_zero.log.setLevel(level)
