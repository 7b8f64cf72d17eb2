"""Every format is read into named arrays. Here they are joined into `Predictions`, and predictions are taken apart.

Only the name of an array tells what it means, never its values. Unknown names are ignored and never loaded, so a file
may hold anything else.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.errors import FileError, nearest
from calibrant.functional.class_names import agreed, as_text
from calibrant.functional.inputs import predictions
from calibrant.types import Predictions, Split

ROLES: dict[str, tuple[str, ...]] = {
    "logits": ("logits", "logit"),
    "probs": ("probs", "prob"),
    "labels": ("labels", "label"),
    "predicted": ("predicted",),
    "confidence": ("confidence",),
    "ids": ("ids", "id"),
    "classes": ("classes",),
    "features": ("features", "feature"),
    "group": ("group",),
    "split": ("split",),
    "raw": ("raw",),
    "binary": ("binary",),
    "fitted_on": ("fitted_on",),
    "origin": ("origin",),
}
"""Role → the names that are accepted for it. We write the first."""


PER_ITEM = ("predicted", "ids", "group")
"""Roles whose texts are a column of a table; other lists are about the whole table."""

SHOWN = 20
"""Names that an error lists."""


@dataclass(frozen=True)
class Keys:
    """Names that the user passes (`--logits-key` …); a name that is passed replaces the usual ones."""

    logits: str | None = None
    probs: str | None = None
    labels: str | None = None
    predicted: str | None = None
    confidence: str | None = None
    group: str | None = None

    @property
    def words(self) -> str:
        """The same as command-line options, each after a space."""
        given = asdict(self).items()
        return "".join(f" --{name}-key {shlex.quote(key)}" for name, key in given if key is not None)


@dataclass(frozen=True)
class Arrays:
    """The named arrays of one file. `load` reads one of them; `meta` is text that the file holds beside them."""

    path: Path
    names: tuple[str, ...]
    load: Callable[[str], Any]
    meta: Mapping[str, str] = field(default_factory=dict)
    word: str = "key"  # what this format calls a name
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of a table: the columns of each array
    table: Callable[[list[str], bool], Any] | None = None  # of a table: reads columns as they are, or as text

    @property
    def found(self) -> str:
        names = [column for name in self.names for column in self.columns.get(name, (name,))]
        shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        return f"{self.word}s found: {shown or 'none'}"


def join(
    arrays: Arrays,
    keys: Keys | None = None,
    *,
    class_axis: int = -1,
    ignore_index: int | None = None,
    split: Split | str | None = None,
    classes: Sequence[Any] | None = None,
    source: str | None = None,
    doubt: bool = True,
) -> Predictions:
    """Join named arrays into checked predictions. Every error names the file; `doubt` is passed to `predictions`."""
    keys = keys or Keys()
    name = str(arrays.path) if source is None else source
    roles = choose(arrays, keys)
    values = {role: arrays.load(key) for role, key in roles.items() if role not in _TEXTS}
    texts = {role: _text(arrays, roles, role) for role in _TEXTS}
    named = _listed(arrays, values.get("classes"), "classes")
    if classes is not None and named is not None:
        agreed(classes, named, f"{name}: " if name else "")
    built = predictions(
        values.get("logits"),
        values["labels"],
        probs=values.get("probs"),
        predicted=values.get("predicted"),
        confidence=values.get("confidence"),
        split=split or texts["split"] or Split.UNKNOWN,
        class_axis=class_axis,
        ignore_index=ignore_index,
        ids=_listed(arrays, values.get("ids"), "ids"),
        classes=named if classes is None else classes,
        features=values.get("features"),
        group=values["group"] if "group" in values else _listed(arrays, None, "group"),
        raw=_flag(texts["raw"], True),
        source=name,
        doubt=doubt,
    )
    return replace(
        built,
        binary=built.binary or _flag(texts["binary"], False),
        fitted_on=texts["fitted_on"] or "",
        origin=texts["origin"] or "",
    )


_TEXTS = ("split", "raw", "binary", "fitted_on", "origin")


def choose(arrays: Arrays, keys: Keys) -> dict[str, str]:
    """Return {role: name of the array in this file}."""
    given = asdict(keys)
    roles: dict[str, str] = {}
    for role, names in ROLES.items():
        asked = given.get(role)
        if asked is not None:
            if asked not in arrays.names:
                meant = nearest(asked, arrays.names, cutoff=0.7)
                hint = f"did you mean {meant!r}? " if meant else ""
                raise FileError(f"{arrays.path}: no {arrays.word} {asked!r} for {role}; {hint}{arrays.found}")
            roles[role] = asked
            continue
        present = [n for n in names if n in arrays.names]
        if len(present) > 1:
            option = f"; choose one with --{role}-key" if role in given else ""
            raise FileError(f"{arrays.path}: both {present[0]!r} and {present[1]!r} are there{option}")
        if present:
            roles[role] = present[0]
    if keys.logits is not None and keys.probs is None:
        roles.pop("probs", None)
    elif keys.probs is not None and keys.logits is None:
        roles.pop("logits", None)
    _complete(arrays, roles)
    return roles


def _complete(arrays: Arrays, roles: dict[str, str]) -> None:
    if "labels" not in roles:
        raise FileError(
            f"{arrays.path}: no {arrays.word} 'labels' or 'label'; {arrays.found}; pass its name with --labels-key, "
            "or a file of labels with --labels FILE.npy"
        )
    if "logits" in roles and "probs" in roles:
        raise FileError(
            f"{arrays.path}: holds both logits and probs; choose with --logits-key {roles['logits']} "
            f"or --probs-key {roles['probs']}"
        )
    pair = {"predicted", "confidence"} & roles.keys()
    if "logits" in roles or "probs" in roles:
        if len(pair) == 1:  # one of the two adds nothing to the scores
            roles.pop(pair.pop())
    elif len(pair) < 2:
        table = arrays.word == "column"
        raise FileError(
            f"{arrays.path}: no {arrays.word} 'logits' or 'probs' (nor 'predicted' with 'confidence'); "
            f"{arrays.found}; pass their names with --logits-key, --probs-key, or --predicted-key and --confidence-key"
            + ("; scores with one column per class are called logit_0, … or prob_cat, prob_dog, …" if table else "")
        )


def _text(arrays: Arrays, roles: Mapping[str, str], role: str) -> str | None:
    """The text that applies to the whole file, from an array of equal entries or from the metadata."""
    if role not in roles:
        return arrays.meta.get(role)
    entries = np.asarray(arrays.load(roles[role])).reshape(-1).tolist()
    texts = sorted({as_text(e) for e in entries if e is not None} - {""})
    if len(texts) > 1:
        raise FileError(f"{arrays.path}: {role} holds {' and '.join(texts[:3])}; write one file for each")
    return texts[0] if texts else None


def _flag(text: str | None, default: bool) -> bool:
    return default if text is None else text.lower() in ("true", "1", "1.0")


def _listed(arrays: Arrays, values: Any, name: str) -> Sequence[str] | None:
    """`ids` or `classes` from an array, from a JSON list in a cell, or from the metadata."""
    if values is None:
        return json_list(arrays.meta[name], arrays.path, name) if name in arrays.meta else None
    entries = np.asarray(values).reshape(-1).tolist()
    if name == "classes" and isinstance(values, list) and entries and str(entries[0]).startswith("["):
        return json_list(str(entries[0]), arrays.path, name)
    return [as_text(e) for e in entries]


def json_list(text: str, path: Path, name: str) -> list[str]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: {name} is not a JSON list: {error}") from error
    if not isinstance(values, list):
        raise FileError(f"{path}: {name} is not a JSON list")
    return [str(v) for v in values]


@dataclass(frozen=True)
class Content:
    """What a file is written from: tensors, lists of text and single texts by role, and other columns of a table."""

    tensors: Mapping[str, Any]
    lists: Mapping[str, tuple[str, ...]]
    texts: Mapping[str, str]
    others: Any = None  # an Arrow table

    @property
    def rows(self) -> dict[str, tuple[str, ...]]:
        """The lists with one text per item, by the name of their column."""
        return {ROLES[role][-1]: self.lists[role] for role in PER_ITEM if role in self.lists}

    @property
    def about(self) -> dict[str, str]:
        """The texts that apply to the whole table, except its split. Lists become JSON."""
        texts = {role: text for role, text in self.texts.items() if role != "split"}
        lists = {role: list(texts) for role, texts in self.lists.items() if role not in PER_ITEM}
        return texts | {role: json.dumps(entries, ensure_ascii=False) for role, entries in lists.items()}

    def beside(self, written: Collection[str]) -> dict[str, Any]:
        """The other columns, except those whose name is written already."""
        names = () if self.others is None else self.others.column_names
        return {name: self.others.column(name) for name in names if name not in written}


def content(p: Predictions) -> Content:
    """Predictions, taken apart for writing."""
    tensors = {
        role: getattr(p, role).detach().cpu().contiguous()
        for role in ("logits", "labels", "predicted", "confidence", "features")
        if getattr(p, role) is not None
    }
    lists = {role: getattr(p, role) for role in ("ids", "classes") if getattr(p, role) is not None}
    if p.group is not None:
        names = p.group_names or tuple(map(str, range(int(p.group.max()) + 1)))
        if all(re.fullmatch(r"-?\d{1,18}", name) for name in names):
            tensors["group"] = torch.tensor([int(name) for name in names])[p.group.cpu()]
        else:
            lists["group"] = tuple(names[i] for i in p.group.tolist())
    texts = {"split": p.split.value}
    if p.logits is not None and not p.raw:
        texts["raw"] = "false"
    if p.binary:
        texts["binary"] = "true"
    texts.update({role: getattr(p, role) for role in ("fitted_on", "origin") if getattr(p, role)})
    return Content(tensors, lists, texts)
