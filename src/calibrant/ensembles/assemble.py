"""An ensemble by its name on the command line: the table's class builds itself."""

from __future__ import annotations

from calibrant.ensembles import ENSEMBLES
from calibrant.ensembles.ensemble import Ensemble
from calibrant.ensembles.ingredients import Ingredients
from calibrant.errors import unknown


def assemble(name: str, given: Ingredients) -> Ensemble:
    """The ensemble `name` of the table, ready to predict."""
    if name not in ENSEMBLES:
        raise unknown("ensemble", name, ENSEMBLES)
    return ENSEMBLES[name].build(given)
