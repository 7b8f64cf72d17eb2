"""Names of a recipe → objects: network, criterion, penalties, targets, transforms, each from its family's table.

Options are checked against the signature of what they configure, so a typo is an error naming the nearest valid option.
What only the run knows (`classes`, `items`, `std`, an `attack`) is handed in where a signature asks for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.data import Data
from calibrant.errors import InputError, unknown
from calibrant.losses import LOSSES, PENALTIES
from calibrant.protocols import BatchTransform, Criterion, Penalty, TargetPolicy
from calibrant.targets import TARGETS
from calibrant.training.adversary import adversary
from calibrant.training.recipe import Recipe
from calibrant.training.settings import Choice
from calibrant.transforms import TRANSFORMS
from calibrant.types import Split

MEDIAN_FREQUENCY = "median_frequency"
"""What `class_weights` of a loss may say instead of numbers."""

ADVERSARY = "adversary"


@dataclass(frozen=True)
class Components:
    """What one run trains with. Penalties may keep a history of their member, so each member has its own."""

    criterion: Criterion
    penalties: tuple[tuple[Penalty, ...], ...]
    policy: TargetPolicy
    transforms: tuple[BatchTransform, ...]

    @property
    def mixes(self) -> bool:
        """Whether a transform leaves items without one plain label."""
        return any(getattr(t, "mixes_labels", True) for t in self.transforms)


def known_of(data: Data) -> dict[str, Any]:
    """What a run knows and a recipe cannot write."""
    train = data[Split.TRAIN]
    return {
        "classes": data.k,
        "items": int(train.index.max()) + 1,
        "std": data.std,
        ADVERSARY: lambda table, epsilon, key: adversary(table, epsilon, data, key),
        MEDIAN_FREQUENCY: lambda: median_frequency(train.y, data.k),
    }


def median_frequency(labels: Tensor, classes: int) -> tuple[float, ...]:
    """w_c = median(f) / f_c (Eigen 2015; SS A.2), f_c: the share of class c in the images that hold it.

    For plain labels f_c is the class's share of all items. A class that never occurs weighs 0.
    """
    rows = labels.reshape(1 if labels.ndim == 1 else len(labels), -1)
    counts = torch.stack([torch.bincount(row[row >= 0], minlength=classes) for row in rows]).double()
    shares = counts.sum(0) / ((counts > 0).double() * (rows >= 0).sum(1)[:, None]).sum(0).clamp_min(1)
    present = shares > 0
    return tuple(torch.where(present, shares[present].quantile(0.5) / shares.clamp_min(1e-300), 0.0).tolist())


def components(recipe: Recipe, known: Mapping[str, Any]) -> Components:
    """Everything but the networks; `known` holds what only the run knows."""
    made = Components(
        criterion=make(LOSSES, recipe.loss, "loss", known),
        penalties=tuple(
            tuple(make(PENALTIES, c, f"penalties.{i}", known) for i, c in enumerate(recipe.penalties))
            for _ in range(recipe.members)
        ),
        policy=make(TARGETS, recipe.targets, "targets", known),
        transforms=tuple(make(TRANSFORMS, c, f"transforms.{i}", known) for i, c in enumerate(recipe.transforms)),
    )
    wanting = next((c.name for c in recipe.penalties if getattr(PENALTIES[c.name], "needs_labels", False)), None)
    if made.mixes and wanting is not None:
        mixing = ", ".join(c.name for c in recipe.transforms)
        raise InputError(f"penalty {wanting!r} needs each item's label, and {mixing} mixes them; drop one of them")
    return made


def make(table: Mapping[str, Callable[..., Any]], choice: Choice, key: str, known: Mapping[str, Any]) -> Any:
    """The thing that `choice` names, built with its options and what the run knows."""
    if choice.name not in table:
        raise unknown(key.split(".")[0], choice.name, table)
    target = table[choice.name]
    parameters = inspect.signature(target).parameters
    names = [n for n, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for option in choice.options:
        if option not in names:
            raise unknown("key", f"{key}.{option}", [f"{key}.{n}" for n in names])
    given = dict(choice.options)
    if given.get("class_weights") == MEDIAN_FREQUENCY:
        given["class_weights"] = known[MEDIAN_FREQUENCY]()
    if "attack" in names and "attack" not in known and ADVERSARY in known:
        epsilon = given.get("epsilon", parameters["epsilon"].default)
        given["attack"] = known[ADVERSARY](given.get("attack", "pgd"), epsilon, key)
    handed = {name: known[name] for name in names if name in known and name not in given}
    missing = [n for n in names if parameters[n].default is inspect.Parameter.empty and n not in {**given, **handed}]
    if missing:
        raise InputError(f"{key} {choice.name!r} needs {', '.join(missing)}, which a recipe cannot write; hand it in")
    try:
        return target(**given, **handed)
    except TypeError as error:
        raise InputError(f"{key} {choice.name!r} cannot be made with {dict(choice.options)}: {error}") from error
