"""`package.module:factory`: import the factory and call it without arguments, for a model or a data set.

This is the only place where a name becomes code, and only names that the user typed or passed in Python come here. A
name in a file (a run, a recipe, a map) is data: `calibrant.data.stored_name` refuses it unless the user repeats it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrant.errors import InputError, users_code


def call_factory(module: str, name: str, what: str) -> Any:
    """Import the factory and return what it returns. An error in the user's code names the factory."""
    factory = find_factory(module, name, what)
    with users_code(f"{what}: {name}(), called without arguments,"):
        return factory()


def find_factory(module: str, name: str, what: str) -> Callable[..., Any]:
    """Looks for `module` on the path and in the current folder; `what` names it in errors, as in "model 'my:net'"."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        with users_code(f"importing {module!r} of the {what}"):
            loaded = importlib.import_module(module)
    finally:
        sys.path.remove(here)
    factory: Callable[..., Any] | None = getattr(loaded, name, None)
    if factory is None or not callable(factory):
        raise InputError(f"{module!r} has no function or class {name!r} ({what})")
    return factory
