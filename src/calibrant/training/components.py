"""Build what a recipe names: criterion, penalties, targets and transforms, each from its family's table.

Options are checked against the signature of what they configure. A typo is an error that names the nearest option, and
a value of the wrong type is an error that names the key. What only the run knows (`classes`, `items`, `std`, an
`attack`) is passed where a signature has a parameter of that name.

CCAT's attack is written in the recipe: `attack = {name = "pgd", iterations = 10, alpha = 0.01}`. Its ε is CCAT's unless
the recipe sets another, in pixels of [0, 1]. PGD maximises the confidence of any class except the label (Stutz 2020)
unless the recipe says `maximise = "loss"`. The attack runs eagerly, because a captured one would have to be captured
again for every batch. It starts from a point drawn by the run's own generator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from calibrant.attacks import ATTACKS, Attack, Bounds
from calibrant.data import Data
from calibrant.errors import CalibrantError, InputError, unknown
from calibrant.functional.settings import types_of
from calibrant.losses import LOSSES, PENALTIES
from calibrant.protocols import BatchTransform, Criterion, Penalty, TargetPolicy
from calibrant.targets import TARGETS
from calibrant.training.recipe import Recipe
from calibrant.training.settings import Choice, as_choice, check_type
from calibrant.transforms import TRANSFORMS
from calibrant.types import Split

CLASS_WEIGHTS = "class_weights"
"""What a recipe calls a loss's `weight`, because a penalty's `weight` means something else."""

MEDIAN_FREQUENCY = "median_frequency"
"""What a recipe may write as a loss's `class_weights` instead of numbers."""

ATTACK_ITERATIONS = 10
"""Default for an attack in training (AR A.1)."""

LOOP_OPTIONS = {"reduction": "none", "ignore_index": -100}
"""Options of a loss that the loop sets, not the recipe: it reduces by itself, over all processes."""


@dataclass(frozen=True)
class Components:
    """What one run trains with. Penalties may keep a history, so each member has its own."""

    criterion: Criterion
    penalties: tuple[tuple[Penalty, ...], ...]
    policy: TargetPolicy
    transforms: tuple[BatchTransform, ...]

    @property
    def mixes(self) -> bool:
        """Whether a transform mixes labels, so that an item no longer has exactly one."""
        return any(getattr(t, "mixes_labels", True) for t in self.transforms)


def known_values(data: Data) -> dict[str, Any]:
    """The values that the run knows and a recipe cannot write."""
    return {"classes": data.k, "items": int(data[Split.TRAIN].index.max()) + 1, "std": data.std, "data": data}


def median_frequency(labels: Tensor, classes: int) -> tuple[float, ...]:
    """w_c = median(f) / f_c (Eigen 2015; SS A.2), where f_c is the share of class c in the images that contain it.

    For plain labels f_c is the class's share of all items. A class that never occurs has weight 0.
    """
    rows = labels.reshape(1 if labels.ndim == 1 else len(labels), -1)
    counts = torch.stack([torch.bincount(row[row >= 0], minlength=classes) for row in rows]).double()
    shares = counts.sum(0) / ((counts > 0).double() * (rows >= 0).sum(1)[:, None]).sum(0).clamp_min(1)
    present = shares > 0
    return tuple(torch.where(present, shares[present].quantile(0.5) / shares.clamp_min(1e-300), 0.0).tolist())


def components(recipe: Recipe, known: Mapping[str, Any]) -> Components:
    """Build everything except the networks; `known` holds what only the run knows."""
    made = Components(
        criterion=make(LOSSES, recipe.loss, "loss", {**known, **LOOP_OPTIONS}),
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


def make(
    table: Mapping[str, Callable[..., Any]],
    choice: Choice,
    key: str,
    known: Mapping[str, Any],
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """The object that `choice` names, built from its options, `defaults`, and what the run knows.

    An option must have the type that the signature says, where that is a type of TOML. Options that the run knows
    cannot be set."""
    if choice.name not in table:
        raise unknown(next(word for word in reversed(key.split(".")) if not word.isdigit()), choice.name, table)
    target = table[choice.name]
    parameters = inspect.signature(target).parameters
    names = [n for n, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    written = {CLASS_WEIGHTS if table is LOSSES and n == "weight" else n: n for n in names if n not in known}
    given = {name: value for name, value in defaults.items() if name in written}
    hints = types_of(target)
    for option, value in choice.options.items():
        if option not in written:
            raise _unknown_option(key, choice.name, option, list(written))
        if option == CLASS_WEIGHTS and value == MEDIAN_FREQUENCY:
            value = median_frequency(known["data"][Split.TRAIN].y, known["classes"])
        if option != "attack":
            check_type(hints.get(written[option], Any), value, f"{key}.{option}")
        given[written[option]] = value
    if "attack" in written and "data" in known:
        epsilon = given.get("epsilon", parameters["epsilon"].default)
        given["attack"] = adversary(given.get("attack", "pgd"), epsilon, known["data"], key)
    given |= {name: known[name] for name in names if name in known}
    missing = [n for n in names if parameters[n].default is inspect.Parameter.empty and n not in given]
    if missing:
        raise InputError(
            f"{key} {choice.name!r} needs {', '.join(missing)}, which a recipe cannot write; pass How(handed=…)"
        )
    return target(**given)


def _unknown_option(key: str, name: str, option: str, options: list[str]) -> CalibrantError:
    if not options:
        return InputError(f"{key} {name!r} has no settings, so {key}.{option} cannot be set; choose another {key}.name")
    return unknown("key", f"{key}.{option}", [f"{key}.{n}" for n in options])


@dataclass(frozen=True)
class Adversary:
    """(model, x, labels) → x'; `seeded` gives the same attack from another starting point."""

    attack: Attack

    def __call__(self, model: Any, x: Tensor, labels: Tensor) -> Tensor:
        return self.attack(model, x, labels)

    def seeded(self, seed: int) -> Adversary:
        attack: Any = self.attack
        return Adversary(replace(attack, seed=seed)) if hasattr(attack, "seed") else self


def adversary(attack: Any, epsilon: float, data: Data, key: str) -> Adversary:
    """The attack that the recipe describes by a name or a table."""
    named = as_choice({"name": "pgd", **attack} if isinstance(attack, Mapping) else attack, f"{key}.attack")
    known = {"bounds": Bounds(mean=data.mean, std=data.std), "engine": "eager"}
    usual = {"epsilon": epsilon, "iterations": ATTACK_ITERATIONS, "maximise": "confidence"}
    return Adversary(make(ATTACKS, named, f"{key}.attack", known, usual))
