"""Notes on the given models, on stderr: unfinished runs, and runs of different recipes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.cli.console import say
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.ensembles.reference import Reference


def say_notes(found: Sequence[Reference]) -> None:
    for reference in found:
        if reference.note:
            say(f"note: {reference.note}", err=True)


def check_once(models: Sequence[str]) -> None:
    """Each model may be given once."""
    places = [str(Path(text).resolve()) if Path(text).is_dir() else text for text in models]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise InputError(f"{models[i]} is named twice; pass each model once")


def say_recipes(models: Sequence[str], found: Sequence[Reference]) -> None:
    """For a variance over models: a note says if their recipes differ."""
    for text, other in zip(models, found, strict=True):
        if other.recipe != found[0].recipe:
            said = "they differ in more than the seed"
            say(f"note: {text} was trained with another recipe than {models[0]}: {said}", err=True)
