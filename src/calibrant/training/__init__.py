"""Training: one loop, recipes that say what it computes, and checkpoints to resume from at any time.

calibrant.train("digits/focal", "RUN/")
calibrant.training.load("RUN/").members
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.errors import no_attribute
from calibrant.training.recipe import Recipe, Selection, read
from calibrant.training.recipes import RECIPES

if TYPE_CHECKING:
    from calibrant.training.run import How, train
    from calibrant.training.run_folder import load
    from calibrant.training.selection import select

_LATER = {"How": "run", "load": "run_folder", "select": "selection", "train": "run"}

__all__ = ["RECIPES", "How", "Recipe", "Selection", "load", "read", "select", "train"]


def __getattr__(name: str) -> Any:
    """Load what needs data and networks on first use, so that reading a recipe stays cheap."""
    if name not in _LATER:
        raise no_attribute(__name__, name, __all__)
    from importlib import import_module

    return getattr(import_module(f"calibrant.training.{_LATER[name]}"), name)
