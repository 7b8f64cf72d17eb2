"""The attack that CCAT trains against, as a recipe writes it: `attack = {name = "pgd", iterations = 10, alpha = 0.01}`.

Its ε is CCAT's unless it says otherwise, in pixels of [0, 1]. PGD maximises the confidence of any class but the label
(Stutz 2020) unless the recipe says `maximise = "loss"`. It runs step by step, since a captured one would be captured
anew for every batch, and starts from a point that the run's own generator draws.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from calibrant.attacks import ATTACKS, Attack, Bounds
from calibrant.data import Data
from calibrant.errors import InputError, unknown

ITERATIONS = 10
"""Of the attack in training (AR A.1)."""


@dataclass(frozen=True)
class Adversary:
    """(model, x, labels) → x'; `seeded` gives the same attack from another starting point."""

    attack: Attack

    def __call__(self, model: Any, x: Tensor, labels: Tensor) -> Tensor:
        return self.attack(model, x, labels)

    def seeded(self, seed: int) -> Adversary:
        attack: Any = self.attack
        return Adversary(replace(attack, seed=seed)) if hasattr(attack, "seed") else self


def adversary(table: Mapping[str, Any] | str, epsilon: float, data: Data, key: str) -> Adversary:
    """What the recipe's table names."""
    options: dict[str, Any] = {"name": table} if isinstance(table, str) else dict(table)
    name = options.pop("name", "pgd")
    if name not in ATTACKS:
        raise unknown("attack", str(name), ATTACKS)
    known = [
        p for p in inspect.signature(ATTACKS[name]).parameters if p not in ("bounds", "engine", "batch", "reduced")
    ]
    for option in options:
        if option not in known:
            raise unknown("key", f"{key}.attack.{option}", [f"{key}.attack.{n}" for n in known])
    if "epsilon" in known:
        options.setdefault("epsilon", epsilon)
    if "iterations" in known:
        options.setdefault("iterations", ITERATIONS)
    if "maximise" in known:
        options.setdefault("maximise", "confidence")
    try:
        made = ATTACKS[name](bounds=Bounds(mean=data.mean, std=data.std), engine="eager", **options)
    except TypeError as error:
        raise InputError(f"{key}.attack {name!r} cannot be made with {options}: {error}") from error
    return Adversary(made)
