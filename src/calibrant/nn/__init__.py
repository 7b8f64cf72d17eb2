"""Networks of the papers by name, and `build`, which makes one from a seed and leaves the global generator alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from calibrant.errors import unknown
from calibrant.nn import cnn, densenet, mlp, preact, resnet, vgg
from calibrant.nn.blocks import Layers
from calibrant.nn.seeded import seeded
from calibrant.nn.weights import load_weights

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp.MLP,
    "mnist_cnn": cnn.mnist_cnn,
    "cifar_cnn": cnn.cifar_cnn,
    "resnet18": resnet.resnet18,
    "resnet50": resnet.resnet50,
    "resnet101": resnet.resnet101,
    "resnext50": resnet.resnext50,
    "resnet20": resnet.resnet20,
    "resnet32": resnet.resnet32,
    "resnet44": resnet.resnet44,
    "resnet56": resnet.resnet56,
    "resnet110": resnet.resnet110,
    "resnet29v2": preact.resnet29v2,
    "preact_resnet18": preact.preact_resnet18,
    "wide_resnet28_10": preact.wide_resnet28_10,
    "vgg16": vgg.vgg16,
    "vgg19": vgg.vgg19,
    "densenet121": densenet.densenet121,
    "densenet169": densenet.densenet169,
}

LAYER_OPTIONS = frozenset(inspect.signature(Layers).parameters)


def build(
    name: str,
    *,
    classes: int,
    in_channels: int = 3,
    size: int | tuple[int, int] = 32,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """A freshly initialised network of `MODELS`.

    `size` is the height and width of its images (networks that do not depend on it ignore it). Options go to the
    network (`head=`, `shortcut=`, `stem=`, `hidden=`, …) or to its layers (`dropout=`, `norm=`, `act=`, `pool=`,
    `stage_end=`).
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    known = options_of(name)
    for key in options:
        if key not in known:
            raise unknown(f"option of model {name!r}", key, known)
    edges = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    layers = Layers(**{key: options.pop(key) for key in LAYER_OPTIONS & options.keys()})
    with seeded(seed):
        return MODELS[name](classes, in_channels, edges, layers, **options)


def options_of(name: str) -> tuple[str, ...]:
    """The settings that `build(name, …)` takes besides classes, in_channels, size and seed."""
    parameters = inspect.signature(MODELS[name]).parameters.values()
    return tuple(sorted({p.name for p in parameters if p.kind is p.KEYWORD_ONLY} | LAYER_OPTIONS))


__all__ = ["MODELS", "Layers", "build", "load_weights", "options_of"]
