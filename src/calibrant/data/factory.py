"""`package.module:factory`: import the factory and call it without arguments, for a model or a data set.

This is the only place where a name becomes code, and only names that the user typed or passed in Python come here. A
name in a file (a run, a recipe, a map) is data: `calibrant.data.stored_name` refuses it unless the user repeats it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrant.errors import CalibrantError, InputError


def call_factory(module: str, name: str, what: str) -> Any:
    """Import the factory and return what it returns. An error in the user's code names the factory."""
    factory = find_factory(module, name, what)
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise InputError(f"the {what} is called without arguments: {error}; give it a default") from error
    except ValueError:  # code in C may have no signature
        pass
    try:
        return factory()
    except CalibrantError:
        raise
    except Exception as error:
        raise InputError(f"{what}: {name}() failed with {type(error).__name__}: {error}") from error


def find_factory(module: str, name: str, what: str) -> Callable[..., Any]:
    """Looks for `module` on the path and in the current folder; `what` names it in errors, as in "model 'my:net'"."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        loaded = importlib.import_module(module)
    except Exception as error:  # no such module, or an error in the user's code
        raise InputError(f"cannot import {module!r} of the {what}: {error}") from error
    finally:
        sys.path.remove(here)
    factory: Callable[..., Any] | None = getattr(loaded, name, None)
    if factory is None or not callable(factory):
        raise InputError(f"{module!r} has no function or class {name!r} ({what})")
    return factory
