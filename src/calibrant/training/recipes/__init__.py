"""The table of named recipes: the papers' constants, one file per paper, and small ones on digits."""

from __future__ import annotations

from calibrant.training.recipe import Recipe
from calibrant.training.recipes import ar, digits, ds, pep, rc, ss

_FILES = (digits, pep, ss, ar, rc, ds)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for file in _FILES for recipe in file.RECIPES}
"""Name → recipe, `paper/what`."""
