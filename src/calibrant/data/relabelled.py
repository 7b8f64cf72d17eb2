"""A folder's classes under the numbers that a model gives them.

A network trained on CIFAR-10 calls cats 3; a folder with `cat` and `dog` calls them 0. Sub-folders are matched by name,
or by number where all their names are numbers below K. What cannot be matched is an error: in the order of names,
labels would be silently wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from calibrant.data.records import Data
from calibrant.errors import InputError

SHOWN = 5


def relabelled(data: Data, classes: Sequence[str]) -> Data:
    """The same items, labelled as `classes` are numbered."""
    names = list(classes)
    if all(name in names for name in data.classes):
        numbers = [names.index(name) for name in data.classes]
    elif all(name.isdigit() and int(name) < len(names) for name in data.classes):
        numbers = [int(name) for name in data.classes]
    else:
        stranger = next(name for name in data.classes if name not in names)
        shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        raise InputError(
            f"{data.name}: the folder {stranger!r} is no class of the model ({shown}); "
            "name its sub-folders after the classes, or number them from 0"
        )
    if numbers == list(range(len(names))):
        return replace(data, classes=tuple(names))
    new = torch.tensor(numbers)
    return replace(
        data,
        splits={split: replace(part, y=new[part.y]) for split, part in data.splits.items()},
        classes=tuple(names),
    )
