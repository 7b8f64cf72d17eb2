"""Find the networks that a name on the command line refers to.

    RUN/                              what `calibrant train` wrote
    timm:NAME[@WEIGHTS]               with the extra [vision]; by default with the published weights
    torchvision:NAME[@WEIGHTS]        likewise
    package.module:factory[@WEIGHTS]  your own: called without arguments, found on the path or in the current folder
    package.module:factory@RUN/       your own, with the weights of the run that trained it

WEIGHTS is any file that `calibrant.nn.load_weights` reads. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from calibrant.data.factory import call_factory
from calibrant.errors import InputError
from calibrant.files.paths import near
from calibrant.nn import load_weights
from calibrant.nn.external import LIBRARIES, published
from calibrant.training.run_folder import load as load_run


@dataclass(frozen=True)
class Reference:
    """Networks and, if known, how their inputs are normalised and what data they were trained on."""

    members: tuple[nn.Module, ...]
    name: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    data: str | None = None  # name of the data set
    data_seed: int = 0
    sizes: Mapping[str, Any] | None = None
    classes: tuple[str, ...] | None = None
    shape: tuple[int, ...] | None = None  # shape of an input
    ignore_index: int | None = None  # label of pixels without a class
    note: str = ""  # a remark for the user
    recipe: str | None = None  # key of a run's recipe; runs that differ in the seed alone share it


def resolve(text: str) -> Reference:
    """Return the model that `text` names, in evaluation mode on the CPU."""
    code, at, folder = text.partition("@")
    if Path(text).is_dir() or (at and Path(folder).is_dir()):
        run = load_run(text) if Path(text).is_dir() else load_run(folder, network=code)
        d = run.recipe.data
        known = (d.name, d.seed, d.sizes, run.classes, run.shape, d.ignore_index)
        late = "" if run.epoch >= run.recipe.epochs else _unfinished(text, run.epoch, run.recipe.epochs)
        note = "; ".join(filter(None, (late, run.note)))
        recipe = replace(run.recipe, seed=0).key()
        return Reference(run.members, text, run.mean, run.std, *known, note, recipe)
    source, colon, rest = text.partition(":")
    if not colon or not rest:
        raise InputError(
            f"no model {text!r}: give a run's folder, timm:NAME, torchvision:NAME or package.module:factory[@WEIGHTS]"
            f"{near(Path(text))}"
        )
    name, _, weights = rest.partition("@")
    if source in LIBRARIES:
        network, mean, std = published(source, name, weights=not weights)
        if weights:
            load_weights(network, weights)
        return Reference((network.eval(),), text, mean, std)
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
