"""A table that is written after a map keeps every column that the map does not replace, as it stands: the label under
its own name and in its own words, ids, groups, and whatever else the table holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from calibrant.files.arrays import ROLES, Arrays, Content, Keys, choose

KEPT = ("labels", "ids", "features", "group")
"""Roles that no map changes. All other roles are written anew."""


@dataclass(frozen=True)
class OtherColumns:
    """An Arrow table, and the name of the column that fills each role in it."""

    table: Any
    roles: Mapping[str, str]


def other_columns(arrays: Arrays, keys: Keys, *, text: bool) -> OtherColumns | None:
    """What a table holds beside what a map replaces; of a CSV file, the `text` that stands there. Arrays have none."""
    if arrays.table is None:
        return None
    roles = choose(arrays, keys)
    # labels may come from a file of their own
    kept = {role: roles[role] for role in KEPT if roles.get(role) in arrays.columns}
    replaced = {name for role in ROLES.keys() - {*KEPT} for name in (*ROLES[role], roles.get(role))}
    names = [name for name in arrays.names if name not in replaced or name in kept.values()]
    return OtherColumns(arrays.table([c for name in names for c in arrays.columns.get(name, ())], text), kept)


def combined(content: Content, others: OtherColumns) -> Content:
    """The content, less what the other columns hold already. Predicted classes are named if the labels are."""
    tensors = {role: tensor for role, tensor in content.tensors.items() if role not in others.roles}
    lists = {role: texts for role, texts in content.lists.items() if role not in others.roles}
    names = lists.get("classes", ())
    label = others.roles.get("labels")
    if label and "predicted" in tensors and others.table.column(label)[0].as_py() in names:
        lists["predicted"] = tuple(names[i] for i in tensors.pop("predicted").tolist())
    return replace(content, tensors=tensors, lists=lists, others=others.table)
