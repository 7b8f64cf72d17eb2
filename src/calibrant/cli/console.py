"""Safe output: nothing that comes from a file, a name, a key or a column can control the terminal.

Every line for people goes through `say`, every block (tables as text, JSON) through `block`, everything that rich lays
out through `layout.Console`. Control characters in other people's text are escaped; line breaks and colours are ours.
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
    """One line, whatever is in it."""
    typer.echo(escaped(line), err=err)


def block(text: str, *, err: bool = False) -> None:
    """Several lines of our own."""
    typer.echo(escaped(text, lines=True), err=err)


def block_json(value: Any, indent: int | None = 2) -> None:
    from calibrant.types import jsonable

    block(json.dumps(jsonable(value), indent=indent, ensure_ascii=False, allow_nan=False))


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Inside, warnings are escaped too; our own are one line, without their place in the code."""

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
