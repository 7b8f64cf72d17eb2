"""Networks of timm and torchvision by name, where the extra is installed: `timm:resnet18`, `torchvision:resnet18`.

They start from the seed like our own, untrained: training is what `build` is for. Options go to the library as is.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from calibrant.errors import InputError, MissingDependencyError

LIBRARIES = ("timm", "torchvision")
FILES = ("cache_dir", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")
"""Options by which timm unpickles a file or fetches one: options come from recipes, which are data."""


def external(name: str, classes: int, in_channels: int, options: dict[str, Any]) -> nn.Module:
    """`LIBRARY:NAME` with as many outputs as classes."""
    library, _, model = name.partition(":")
    for option in options:
        if option in FILES:
            raise InputError(f"{name}: {option} names files to load; load them with `calibrant.nn.load_weights`")
    try:
        found: Any = import_module("timm" if library == "timm" else "torchvision.models")
    except ImportError as error:
        raise MissingDependencyError(f"{name}: needs {library}; pip install 'calibrant[vision]'") from error
    known = found.list_models()
    if model not in known:
        raise InputError(f"{library} has no model {model!r}; its list_models() names {len(known)}")
    if library == "timm":
        made: nn.Module = found.create_model(model, num_classes=classes, in_chans=in_channels, **options)
        return made
    if in_channels != 3:
        raise InputError(f"{name}: torchvision's networks take 3 channels, not {in_channels}; timm's take any number")
    other: nn.Module = found.get_model(model, weights=None, num_classes=classes, **options)
    return other
