"""The networks of a recipe: made by name or by the user's own code, and checked against the data and the loss.

A recipe stores only the name of a network, because a file never runs code. To train or load a run of a network of your
own, pass the network again: `network.name=my.module:net` on the command line, and in Python `network=`, which is such a
text, a function that makes the network, or a module.

Before anything is written, two blank items go through the network in evaluation mode, and their logits through the
loss. This costs one small forward pass. Without it, a misfit would be a traceback from the first epoch, in a folder
that already looks like a run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data import Data
from calibrant.data.factory import find_factory
from calibrant.errors import CalibrantError, InputError
from calibrant.nn import build, in_library
from calibrant.nn.evaluation import evaluation
from calibrant.protocols import Criterion
from calibrant.training.randomness import stream
from calibrant.training.recipe import Recipe
from calibrant.training.settings import Choice
from calibrant.training.step import per_pixel
from calibrant.types import Split

Own = str | nn.Module | Callable[..., nn.Module]
"""`module:factory` as the user typed it, a function that makes a network, or the network."""

ITEMS = 2


def networks(recipe: Recipe, data: Data, given: Own | None = None) -> list[nn.Module]:
    """Freshly initialised members, each from its own random stream. `given` is the user's own network."""
    own = maker(recipe.network.name, given, "the recipe", f"--set network.name={recipe.network.name}, or network=…")
    seeds = [stream(recipe.seed, "weights", m) for m in range(recipe.members)]
    made = [network_of(recipe, len(data.classes), data.shape, own=own, seed=seed) for seed in seeds]
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in made[0].parameters()):
        raise InputError(
            f"network {recipe.network.name!r} has lazy layers without weights; where it is made, run a batch through it"
        )
    return made


def network_of(recipe: Recipe, classes: int, shape: Sequence[int], **options: Any) -> nn.Module:
    """The recipe's network for inputs of this shape: [C, H, W] images, [D] features or [L] tokens."""
    size = (shape[1], shape[2]) if len(shape) == 3 else (1, 1)
    return build(
        recipe.network.name, classes=classes, in_channels=shape[0], size=size, **options, **recipe.network.options
    )


# -- the user's own ------------------------------------------------------------------------------------------------


def is_own(name: str) -> bool:
    """Whether a recipe's network is Python code, which only the user can name."""
    return ":" in name and not in_library(name)


def with_own(recipe: Recipe, given: Own) -> Recipe:
    """The recipe with the name of the user's network, without the options of the network that it replaces."""
    if isinstance(given, str):
        return recipe if recipe.network.name == given else replace(recipe, network=Choice(given))
    if isinstance(given, nn.Module):
        if recipe.members > 1:
            raise InputError(f"one network cannot be {recipe.members} members; pass a function that makes a new one")
        if recipe.targets.name == "ar_adals":
            raise InputError("ar_adals also trains a vanilla twin; pass a function that makes a new network")
        return replace(recipe, network=Choice(f"python:{type(given).__name__}"))
    return replace(recipe, network=Choice(f"python:{getattr(given, '__name__', type(given).__name__)}"))


def maker(name: str, given: Own | None, where: str, remedy: str) -> Callable[..., nn.Module] | None:
    """The user's function that makes the network of a recipe; None if the name is in a table or a library."""
    if not is_own(name):
        return None
    if given is None:
        raise InputError(
            f"{where} names Python code for its network, {name!r}, and a file alone never runs code; if you trust it, "
            f"repeat it: {remedy}"
        )
    if isinstance(given, str):
        module, _, function = given.partition(":")
        return find_factory(module, function, f"network {given!r}")
    if isinstance(given, nn.Module):
        return lambda: given
    return given


def copied(given: Own | None) -> Own | None:
    """A copy of the user's network, to load weights into."""
    return (lambda: copy.deepcopy(given)) if isinstance(given, nn.Module) else given


# -- checks --------------------------------------------------------------------------------------------------------


def check_compatible(name: str, data: Data, network: nn.Module, criterion: Criterion) -> None:
    """Raise `InputError` if network, data and loss do not fit together; the message calls the network `name`."""
    part = data[Split.TRAIN]
    for split in (Split.TRAIN, Split.VALIDATION):  # a training step on an accelerator cannot check them without waiting
        if (highest := int(data[split].y.max())) >= data.k:
            raise InputError(
                f"the {split} part of {data.name} has the label {highest}, but its {data.k} classes are "
                f"0 … {data.k - 1}; correct the label, or name all classes"
            )
    logits = blank_logits(name, data, Split.TRAIN, network)
    if not isinstance(logits, Tensor):
        raise InputError(f"network {name!r} returns a {type(logits).__name__}; training needs the tensor of its logits")
    expected = (ITEMS, *part.y.shape[1:], data.k)
    if tuple(logits.shape) != expected:
        raise InputError(
            f"network {name!r} returns shape {tuple(logits.shape)} for two items of {data.name}, not {expected}; "
            "choose another network"
        )
    per_pixel(criterion, logits.float(), torch.full_like(logits, 1 / data.k, dtype=torch.float32))


def blank_logits(name: str, data: Data, split: Split, network: nn.Module) -> Any:
    """The output of the network for blank items of this data. Modes, statistics and generators do not change."""
    part, home = data[split], next(network.parameters(), torch.zeros(())).device
    tokens = part.items is None and part.x.dtype == torch.long
    x = torch.zeros(ITEMS, *data.shape, dtype=torch.long if tokens else torch.float32, device=home)
    try:
        with torch.no_grad(), evaluation(network):
            return network(x)
    except CalibrantError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        kind = "tokens" if tokens else "×".join(map(str, data.shape))
        raise InputError(
            f"network {name!r} cannot read {data.name} ({kind}): {reason}; choose a network or data that fit"
        ) from error
