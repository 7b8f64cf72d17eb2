"""A recipe and a folder → a run: trained (or resumed), predicted, recorded. `load` brings its networks back.

`RUN/` holds recipe.json, environment.json, data.json, log.jsonl, checkpoint/, metrics.json, and validation.npz,
calibration.npz and test.npz, which audit, fit and compare take as they are; `epochs/` on request; targets.json, the
path of adaptive targets; where these want levels of robustness, levels.json and `vanilla/`, the twin that was attacked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset

from calibrant.data import Data, stored_name
from calibrant.data import load as load_data
from calibrant.data.batches import normalisation
from calibrant.data.label_maps import no_mark_is_a_class
from calibrant.errors import FileError, InputError
from calibrant.files import sealed, write
from calibrant.nn import build as build_network
from calibrant.training import board, levels, run_folder
from calibrant.training import checkpoint as disk
from calibrant.training.epochs import keep_top_logits, keep_validation, keep_weights
from calibrant.training.evaluate import summary
from calibrant.training.loop import Loop, Refresh
from calibrant.training.progress import Progress
from calibrant.training.randomness import stream
from calibrant.training.recipe import Recipe, read
from calibrant.training.rehearsal import rehearse
from calibrant.training.threads import enough_threads, threads_of
from calibrant.types import SCHEMA, Predictions, Split, jsonable

if TYPE_CHECKING:
    from lightning.fabric import Fabric

PREDICTED = (Split.VALIDATION, Split.CALIBRATION, Split.TEST)
PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed"}
RUN_METRICS = ("accuracy", "nll", "brier", "ece", "ece_mass", "auroc", "aurc", "eaurc", "gap")


@dataclass(frozen=True)
class How:
    """How a run is carried out: nothing here changes what it computes."""

    device: str = "auto"
    devices: int = 1
    root: str | Path | None = None  # of the data
    every: int = 1  # epochs between checkpoints
    keep_epochs: bool = False  # of every epoch: validation predictions, and the top logits of the training part
    keep_weights: int = 0  # how many of the last epochs leave their weights, for SWA, SWAG and snapshots
    tensorboard: bool = False  # events of every epoch under RUN/tensorboard
    quiet: bool = False
    listen: Callable[[int, Predictions], None] | None = None  # after each epoch: (finished epochs, validation)
    refresh: Refresh | None = None  # what computes levels of robustness; None: `calibrant.training.levels`
    levels: str | Path | None = None  # where they lie: a run, or a folder of robustness; None: they are measured
    handed: Mapping[str, Any] = field(default_factory=dict)
    factory: str | None = None  # `package.module:factory` of the recipe's data, said by the user: a recipe runs no code


Given = Data | Dataset[Any] | Mapping[str, Dataset[Any]]
"""What may stand where a recipe's name of a data set does."""


def train(
    recipe: Recipe | str | Path,
    out: str | Path,
    how: How = How(),  # noqa: B008
    data: Given | None = None,
) -> dict[str, Any]:
    """Train a recipe (or its name, or a TOML file) into the folder `out`; returns what `metrics.json` holds.

    A run that was stopped continues from its last checkpoint.
    """
    recipe = recipe if isinstance(recipe, Recipe) else read(recipe)
    if recipe.selection is not None:
        raise InputError("this recipe has a selection; use calibrant.training.select")
    if how.tensorboard:
        board.check()
    with run_folder.alone_in(Path(out)):
        return _begun(recipe, Path(out), how, data)


def _begun(recipe: Recipe, folder: Path, how: How, data: Given | None) -> dict[str, Any]:
    said = run_folder.check(folder, recipe)
    fabric = make_fabric(recipe, how)
    loaded = data_of(recipe, how, data)
    run_folder.check_data(folder, loaded)
    begun_with = threads_of(folder) if disk.exists(folder / "checkpoint") else None
    with enough_threads(loaded.shape, recipe.batch, fabric.device, begun_with):
        loop = _loop(recipe, folder, how, loaded, fabric)  # what can be wrong is wrong here, before anything is written
        levels.check(recipe, how, loaded, begun=disk.exists(folder / "checkpoint"))
        if said:
            loop.progress.say(f"note: {said}")
        if fabric.is_global_zero:
            run_folder.describe(folder, recipe, loaded, fabric)
        fabric.barrier()
        if how.refresh is None and levels.wanted(recipe):
            source = levels.LevelSource(recipe, folder, how, loaded, fabric.device)
            source.prepare()  # before the loop, so that each stage has a bar of its own
            loop.refresh = source
        return _trained(loop, folder)


def data_of(recipe: Recipe, how: How, given: Given | None = None) -> Data:
    """The recipe's data, or the caller's own in its place, split by the recipe's seed and sizes."""
    if isinstance(given, Data):
        return given
    d = recipe.data
    name: Any = stored_name(d.name, "the recipe", how.factory) if given is None else given
    # a recipe's sizes are of its own data: a caller's parts stay as they are, and what is missing is cut
    whole = () if given is None else tuple(given) if isinstance(given, Mapping) else ("train",)
    sizes = {part: size for part, size in (d.sizes or {}).items() if part not in whole}
    found = load_data(name, root=how.root, seed=d.seed, sizes=sizes, shape=d.shape, ignore_index=d.ignore_index)
    no_mark_is_a_class(found.splits, found.name if given is not None else d.name)
    return found


def _loop(recipe: Recipe, folder: Path, how: How, loaded: Data, fabric: Fabric) -> Loop:
    _ = loaded[Split.TRAIN], loaded[Split.VALIDATION]  # raises if one is missing, not after an epoch
    progress = Progress(
        recipe.name or recipe.network.name,
        recipe.epochs,
        folder / "log.jsonl" if fabric.is_global_zero else None,
        quiet=how.quiet or not fabric.is_global_zero,
        board=board.Board(folder) if how.tensorboard and fabric.is_global_zero else None,
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
        networks(recipe, loaded),
        folder / "checkpoint",
        how.every,
        how.refresh,
        how.handed,
        listen,
        progress,
    )
    rehearse(recipe.network.name, loaded, loop.members[0].model, loop.parts.criterion)
    if not progress.quiet:
        progress.line(f"inputs: {normalisation(loaded[Split.TRAIN], loaded.mean, loaded.std)}")
    return loop


def _trained(loop: Loop, folder: Path) -> dict[str, Any]:
    """Train what is left, predict, record."""
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
        "epochs": len(history),
        "train_seconds": sum(row["seconds"] for row in history),
        "images_per_second": history[-1]["images_per_second"],
        "train_accuracy": history[-1]["train_accuracy"],  # of the last epoch, augmented, as it learned
        "wall_seconds": time.perf_counter() - start,
        "metrics": result,
    }
    if fabric.is_global_zero:
        record = getattr(loop.parts.policy, "record", None)
        if record is not None:
            sealed.write(folder / "targets.json", {"schema": SCHEMA, **record()})
        sealed.write(folder / "metrics.json", jsonable(metrics))
    fabric.barrier()
    return metrics


def networks(recipe: Recipe, data: Data) -> list[nn.Module]:
    """Freshly initialised members, each from a stream of its own."""
    return [
        build_network(
            recipe.network.name,
            classes=len(data.classes),
            **_input(data.shape),
            seed=stream(recipe.seed, "weights", m),
            **recipe.network.options,
        )
        for m in range(recipe.members)
    ]


@dataclass(frozen=True)
class Trained:
    """A run's networks as they predict (their averages, with EMA), and what their inputs look like."""

    members: tuple[nn.Module, ...]
    recipe: Recipe
    epoch: int
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    note: str = ""  # what a person should know of its files


def load(run: str | Path) -> Trained:
    """The networks of a run's newest intact checkpoint, in evaluation mode on the CPU."""
    notes = [run_folder.opened(Path(run))]
    folder = run_folder.chosen(Path(run))
    if not (folder / "recipe.json").is_file() or not (folder / "data.json").is_file():
        raise FileError(f"{folder} is not a run: it has no recipe.json; give a folder that `calibrant train -o` wrote")
    recipe = read(folder / "recipe.json")
    about = run_folder.about(folder)
    if about.name != recipe.data.name:
        raise FileError(f"{folder}: data.json is of {about.name!r}, recipe.json of {recipe.data.name!r}: not one run")
    found = disk.latest(folder / "checkpoint", notes.append)
    if found is None:
        raise FileError(f"{folder} has no checkpoint yet; run `calibrant train` on it first")
    part = "average" if recipe.ema else "model"
    members = []
    for m in range(recipe.members):
        prefix = f"member.{m}.{part}."
        weights = {k.removeprefix(prefix): t for k, t in found.tensors.items() if k.startswith(prefix)}
        try:
            network = build_network(
                recipe.network.name, classes=len(about.classes), **_input(about.shape), **recipe.network.options
            )
            network.load_state_dict(weights)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            why = " ".join(str(error).split())[:200]
            raise FileError(f"the weights of {folder} do not fit its recipe.json and data.json: {why}") from error
        members.append(network.eval())
    note = "; ".join(text for text in notes if text)
    return Trained(tuple(members), recipe, found.epoch, about.classes, about.shape, about.mean, about.std, note)


def _input(shape: Sequence[int]) -> dict[str, Any]:
    """[C, H, W] images, [D] features or [L] tokens, in the words of `nn.build`."""
    return {"in_channels": shape[0], "size": (shape[1], shape[2]) if len(shape) == 3 else (1, 1)}


def make_fabric(recipe: Recipe, how: How) -> Fabric:
    """Lightning Fabric for the device, the precision and the processes, launched."""
    from lightning.fabric import Fabric

    kind = how.device
    if how.devices < 1:
        raise InputError(f"devices is {how.devices}; a run has at least one process")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in ("cpu", "cuda"):
        raise InputError(f"unknown device {how.device!r}; use auto, cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but torch sees no CUDA device; use --device cpu")
    if how.devices > 1 and "graph" in recipe.engine:
        raise InputError("engine 'graph' runs in one process; use --set engine=eager with --devices")
    fabric = Fabric(
        accelerator=kind,
        devices=how.devices,
        strategy="ddp" if how.devices > 1 else "auto",
        precision=PRECISIONS[recipe.precision],  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric
