"""Safe output: text from a file, a file name, a key or a column cannot control the terminal.

Lines go through `say`, blocks (tables as text, JSON) through `block`, and what rich lays out through `layout.Console`.
All of them escape control characters; line breaks and colours are our own.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from calibrant.errors import CalibrantWarning, escaped


def say(line: str = "", *, err: bool = False) -> None:
    """Print one line; line breaks inside it are escaped."""
    typer.echo(escaped(line), err=err)


def block(text: str, *, err: bool = False) -> None:
    """Print several lines."""
    typer.echo(escaped(text, lines=True), err=err)


def block_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON."""
    from calibrant.types import jsonable

    block(json.dumps(jsonable(value), indent=indent, ensure_ascii=False, allow_nan=False))


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Escape warnings too, and print our own as one line without their place in the code."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if issubclass(category, CalibrantWarning):
            say(f"note: {message}", err=True)
        else:
            block(warnings.formatwarning(message, category, filename, lineno).rstrip(), err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
