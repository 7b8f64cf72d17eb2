"""A model by its name on the command line → networks that can predict.

    RUN/                              what `calibrant train` wrote
    timm:NAME[@WEIGHTS]               with the extra [vision]; without weights, the published ones
    torchvision:NAME[@WEIGHTS]        likewise
    package.module:factory[@WEIGHTS]  yours: called without arguments, found on the path or in the current folder
    package.module:factory@RUN/       a run that trained it

Weights are whatever `calibrant.nn.load_weights` reads: nothing is unpickled.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from calibrant.data.factory import call_factory
from calibrant.errors import InputError, MissingDependencyError
from calibrant.files.paths import near
from calibrant.nn import load_weights
from calibrant.training.run_folder import load as load_run


@dataclass(frozen=True)
class Reference:
    """Networks and, where the reference knows them, the constants of their inputs."""

    members: tuple[nn.Module, ...]
    name: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    data: str | None = None  # the data set it was trained on
    data_seed: int = 0
    sizes: Mapping[str, Any] | None = None
    classes: tuple[str, ...] | None = None
    shape: tuple[int, ...] | None = None  # of what it takes
    ignore_index: int | None = None  # of its data's maps of labels
    note: str = ""  # what a person should know of it
    recipe: str | None = None  # of a run: the key of its recipe, whatever its seed


def resolve(text: str) -> Reference:
    """The model that `text` names, in evaluation mode on the CPU."""
    code, at, folder = text.partition("@")
    if Path(text).is_dir() or (at and Path(folder).is_dir()):
        run = load_run(text) if Path(text).is_dir() else load_run(folder, network=code)
        d = run.recipe.data
        known = (d.name, d.seed, d.sizes, run.classes, run.shape, d.ignore_index)
        late = "" if run.epoch >= run.recipe.epochs else _unfinished(text, run.epoch, run.recipe.epochs)
        note = "; ".join(said for said in (late, run.note) if said)
        recipe = replace(run.recipe, seed=0).key()
        return Reference(run.members, text, run.mean, run.std, *known, note, recipe)
    source, colon, rest = text.partition(":")
    if not colon or not rest:
        raise InputError(
            f"no model {text!r}: give a run's folder, timm:NAME, torchvision:NAME or package.module:factory[@WEIGHTS]"
            f"{near(Path(text))}"
        )
    name, _, weights = rest.partition("@")
    if source == "timm":
        return _timm(name, weights, text)
    if source == "torchvision":
        return _torchvision(name, weights, text)
    model = _factory(source, name, text)
    if weights:
        load_weights(model, weights)
    return Reference((model.eval(),), text)


def _unfinished(run: str, epoch: int, epochs: int) -> str:
    return f"{run} has been trained for {epoch} of {epochs} epochs; these are its weights so far"


def _factory(module: str, name: str, text: str) -> nn.Module:
    model = call_factory(module, name, f"model {text!r}")
    if not isinstance(model, nn.Module):
        raise InputError(f"{text!r} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def _timm(name: str, weights: str, text: str) -> Reference:
    try:
        timm: Any = importlib.import_module("timm")
    except ImportError as error:
        raise MissingDependencyError("timm: models need the extra: pip install 'calibrant[vision]'") from error
    if not timm.is_model(name):
        raise InputError(f"timm has no model {name!r}; see timm.list_models()")
    model = timm.create_model(name, pretrained=not weights)
    if weights:
        load_weights(model, weights)
    known = model.pretrained_cfg
    return Reference((model.eval(),), text, tuple(known["mean"]), tuple(known["std"]))


def _torchvision(name: str, weights: str, text: str) -> Reference:
    try:
        models: Any = importlib.import_module("torchvision.models")
    except ImportError as error:
        raise MissingDependencyError("torchvision: models need the extra: pip install 'calibrant[vision]'") from error
    if name not in models.list_models():
        raise InputError(f"torchvision has no model {name!r}; see torchvision.models.list_models()")
    model = models.get_model(name, weights=None if weights else "DEFAULT")
    if weights:
        load_weights(model, weights)
    return Reference((model.eval(),), text, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
