"""`calibrant list [FAMILY]`: the tables of methods, as they are in the code.

A family is a table in the `__init__.py` of its package. Each entry is shown by the first sentence of its docstring, and
`docs/methods.md` is made from the same rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer

from calibrant.cli.console import block, block_json
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
"""Family → its package, the name of its table, and what the entries are."""


def table(family: str) -> Mapping[str, Any]:
    """The family's table."""
    if family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    package, name, _ = FAMILIES[family]
    found: Mapping[str, Any] = getattr(import_module(package), name)
    return found


def rows(family: str) -> list[tuple[str, str]]:
    """The (name, description) of every entry, in the order of the table."""
    about = str if family == "verbs" else summary
    return [(name, about(entry)) for name, entry in table(family).items()]


def summary(entry: Any) -> str:
    """The title of the entry if it has one, else the first sentence of its docstring."""
    title = getattr(entry, "title", None)
    if isinstance(title, str):
        return title
    if isinstance(entry, str):  # "package.module:name", which keeps the table light
        module, _, name = entry.partition(":")
        loaded = import_module(module)
        return summary(getattr(loaded, name) if name else loaded)
    if not callable(entry) and not inspect.ismodule(entry):
        entry = type(entry)
    entry = getattr(entry, "func", entry)  # functools.partial
    text = inspect.cleandoc(entry.__doc__ or "")
    if text.startswith(f"{getattr(entry, '__name__', '')}("):  # the signature that a dataclass writes
        return ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")


def list_(
    family: Annotated[
        str | None, typer.Argument(help="the table to list; without it, all families and their sizes")
    ] = None,
    as_json: Json = False,
) -> None:
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
    else:
        block("\n".join(aligned([("name", "what it is"), *entries])))
