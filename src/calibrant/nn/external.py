"""Networks of timm and torchvision by name, if they are installed: `timm:resnet18`, `torchvision:resnet18`.

`external` makes an untrained network for `build`, with options passed to the library; `published` can load weights.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from calibrant.errors import InputError, MissingDependencyError

LIBRARIES = ("timm", "torchvision")
FILES = ("cache_dir", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")
"""Options with which timm unpickles or fetches files. They are refused, because recipes, which hold them, are data."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def external(name: str, classes: int, in_channels: int, options: dict[str, Any]) -> nn.Module:
    """Return `LIBRARY:NAME`, untrained, with one output per class."""
    source, _, model = name.partition(":")
    for option in options:
        if option in FILES:
            raise InputError(f"{name}: {option} names files to load; load them with `calibrant.nn.load_weights`")
    found = library(source, model)
    if source == "timm":
        made: nn.Module = found.create_model(model, num_classes=classes, in_chans=in_channels, **options)
        return made
    if in_channels != 3:
        raise InputError(f"{name}: torchvision's networks take 3 channels, not {in_channels}; timm's take any number")
    other: nn.Module = found.get_model(model, weights=None, num_classes=classes, **options)
    return other


def published(source: str, name: str, *, weights: bool) -> tuple[nn.Module, tuple[float, ...], tuple[float, ...]]:
    """Return `LIBRARY:NAME` as published, with or without `weights`, and the mean and std of its inputs."""
    found = library(source, name)
    if source == "timm":
        made: nn.Module = found.create_model(name, pretrained=weights)
        known: Any = made.pretrained_cfg
        return made, tuple(known["mean"]), tuple(known["std"])
    return found.get_model(name, weights="DEFAULT" if weights else None), *IMAGENET


def library(source: str, name: str) -> Any:
    """Return the library's module of models, or raise an error if it is not installed or has no such network."""
    try:
        found: Any = import_module("timm" if source == "timm" else "torchvision.models")
    except ImportError as error:
        raise MissingDependencyError(f"{source}:{name}: needs {source}; pip install 'calibrant[vision]'") from error
    known = found.list_models()
    if name.partition(".")[0] not in known:  # timm's names may end in ".TAG" for certain weights
        raise InputError(f"{source} has no model {name!r}; its list_models() names {len(known)}")
    return found
