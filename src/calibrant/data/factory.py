"""`package.module:factory` on the command line: what it makes, called without arguments (a model, a data set)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from calibrant.errors import InputError


def made(module: str, name: str, what: str) -> Any:
    """`module` is found on the path or in the current folder; `what` names it in errors, as "model 'my:net'"."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"cannot import {module!r} of the {what}: {error}") from error
    finally:
        sys.path.remove(here)
    factory = getattr(loaded, name, None)
    if not callable(factory):
        raise InputError(f"{module!r} has no function or class {name!r} ({what})")
    return factory()
