"""`calibrant list [FAMILY]`: the tables of methods, as they are in the code.

A family is a table in its package's `__init__.py`, name → what it makes. One line is shown of each
entry: the first line of its docstring. `docs/methods.md` is made from the same rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from calibrant.cli.console import block, block_json, say
from calibrant.cli.options import Json
from calibrant.display import aligned
from calibrant.errors import unknown
from calibrant.types import SCHEMA

FAMILIES: dict[str, tuple[str, str, str]] = {
    "metrics": ("calibrant.metrics", "METRICS", "numbers that judge predictions"),
    "calibrators": ("calibrant.posthoc", "CALIBRATORS", "maps fitted on held-out predictions"),
    "confidences": ("calibrant.posthoc", "CONFIDENCES", "models of confidence that leave the label alone"),
    "losses": ("calibrant.losses", "LOSSES", "what an item costs, on soft targets"),
    "penalties": ("calibrant.losses", "PENALTIES", "what a batch costs besides its loss"),
    "targets": ("calibrant.targets", "TARGETS", "labels to soft targets"),
    "transforms": ("calibrant.transforms", "TRANSFORMS", "batches to batches"),
    "ensembles": ("calibrant.ensembles", "ENSEMBLES", "predictors of many members"),
    "attacks": ("calibrant.attacks", "ATTACKS", "inputs moved against a predictor"),
    "shifts": ("calibrant.shifts", "SHIFTS", "inputs that drift from the training data"),
    "perturbations": ("calibrant.shifts", "PERTURBATIONS", "sequences of slightly changed inputs"),
    "novelty": ("calibrant.metrics.ood", "SCORES", "scores that tell foreign items from familiar ones"),
    "diagnostics": ("calibrant.diagnostics", "DIAGNOSTICS", "why a network behaves as it does"),
    "models": ("calibrant.nn", "MODELS", "the papers' networks"),
    "datasets": ("calibrant.data", "DATASETS", "data that this version can read"),
    "recipes": ("calibrant.training", "RECIPES", "trainings by name"),
    "papers": ("calibrant.papers", "PAPERS", "papers whose tables can be measured again"),
    "verbs": ("calibrant.cli", "VERBS", "what the command line can do"),
}
"""Family → the package that holds its table, the table's name, what its entries are."""


def table(family: str) -> Mapping[str, Any]:
    """The family's table; empty when this version does not have the package or the table."""
    if family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    package, name, _ = FAMILIES[family]
    if find_spec(package) is None:
        return {}
    return getattr(import_module(package), name, {})


def rows(family: str) -> list[tuple[str, str]]:
    """(name, one line about it), in the table's order."""
    about = str if family == "verbs" else summary
    return [(name, about(entry)) for name, entry in table(family).items()]


def summary(entry: Any) -> str:
    """A title where the entry has one, else the first sentence of its docstring."""
    title = getattr(entry, "title", None)
    if isinstance(title, str):
        return title
    if isinstance(entry, str):  # "package.module:name", so that a table can stay light
        module, _, name = entry.partition(":")
        loaded = import_module(module)
        return summary(getattr(loaded, name) if name else loaded)
    if not callable(entry) and not inspect.ismodule(entry):
        entry = type(entry)
    entry = getattr(entry, "func", entry)  # functools.partial
    text = inspect.cleandoc(entry.__doc__ or "")
    if text.startswith(f"{getattr(entry, '__name__', '')}("):  # a dataclass wrote its signature there
        return ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")


def list_(
    family: Annotated[
        str | None, typer.Argument(help="which table; without it, all families with their counts")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods of a family, one line each."""
    if family is None:
        lines = [(name, str(len(table(name))), what) for name, (_, _, what) in FAMILIES.items()]
        if as_json:
            counts = [{"name": name, "count": int(count), "summary": what} for name, count, what in lines]
            block_json({"schema": SCHEMA, "families": counts})
        else:
            block("\n".join(aligned([("family", "entries", "what they are"), *lines])))
        return
    entries = rows(family)
    if as_json:
        found = [{"name": name, "summary": text} for name, text in entries]
        block_json({"schema": SCHEMA, "family": family, "entries": found})
    elif not entries:
        say(f"{family}: not in this version yet")
    else:
        block("\n".join(aligned([("name", "what it is"), *entries])))
