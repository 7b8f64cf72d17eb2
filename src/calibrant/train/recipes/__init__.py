"""The table of named recipes: the papers' constants, one file a paper, and small ones on digits."""

from __future__ import annotations

from calibrant.train.recipe import Recipe
from calibrant.train.recipes import ar, digits, ds, pep, rc, ss

RECIPES: dict[str, Recipe] = {
    r.name: r for r in (*digits.RECIPES, *pep.RECIPES, *ss.RECIPES, *ar.RECIPES, *rc.RECIPES, *ds.RECIPES)
}
"""Name → recipe, `paper/what`."""
