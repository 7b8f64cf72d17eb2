"""Some classes of a data set: `cifar10[0-4]`, `digits[0,2,4]`, `cifar10[cat,dog]` (PEP §3.2 trains on five of ten).

The chosen classes are renumbered from 0, in the order of the data set. `complement` names the held-out ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

from calibrant.data.records import Part, Raw, Size
from calibrant.errors import InputError, unknown

_SUBSET = re.compile(r"^(?P<name>[^\[\]]+)\[(?P<chosen>[^\[\]]*)\]$")


def split_name(text: str) -> tuple[str, str | None]:
    """`cifar10[0-4]` → (`cifar10`, `0-4`); a plain name has None."""
    found = _SUBSET.match(text)
    return (found["name"], found["chosen"]) if found else (text, None)


def class_numbers(chosen: str, classes: Sequence[str], name: str) -> tuple[int, ...]:
    """The classes listed in a text: numbers, ranges and names, separated by commas."""
    numbers: set[int] = set()
    for word in (w.strip() for w in chosen.split(",")):
        span = re.fullmatch(r"(\d+)-(\d+)", word)
        if word in classes and not word.isdigit():
            numbers.add(classes.index(word))
        elif span and int(span[1]) <= int(span[2]) < len(classes):
            numbers |= set(range(int(span[1]), int(span[2]) + 1))
        elif word.isdigit() and int(word) < len(classes):
            numbers.add(int(word))
        elif word[:1].isdigit() or not word:
            raise InputError(f"{name}[{chosen}]: {word!r} is not a class of {name}, which has 0 … {len(classes) - 1}")
        else:
            raise unknown(f"class of {name}", word, classes)
    if len(numbers) < 2:
        raise InputError(f"{name}[{chosen}] has one class; choose two or more")
    return tuple(sorted(numbers))


def keep_classes(raw: Raw, numbers: Sequence[int], classes: Sequence[str]) -> Raw:
    """The items of these classes, numbered 0 … in their order."""
    new = torch.full((len(classes),), -1, dtype=torch.long)
    new[list(numbers)] = torch.arange(len(numbers))
    parts = {}
    for split, part in raw.parts.items():
        if part.y.ndim != 1:
            raise InputError("choosing classes needs one label per item, not maps of labels")
        label = new[part.y]
        keep = label >= 0
        parts[split] = Part.of(part.x[keep], label[keep], split)
    return Raw(parts, tuple(classes[i] for i in numbers))


def scale_sizes(sizes: Mapping[str, Size], share: float) -> dict[str, Size]:
    """The default sizes of a data set, for a share of it."""
    return {name: size if isinstance(size, float) else round(size * share) for name, size in sizes.items()}


def complement(text: str, classes: Sequence[str]) -> str | None:
    """The name by which `load` reads the held-out classes of a subset; None for a whole data set."""
    name, chosen = split_name(text)
    if chosen is None:
        return None
    inside = class_numbers(chosen, classes, name)
    rest = [str(i) for i in range(len(classes)) if i not in inside]
    return f"{name}[{','.join(rest)}]" if rest else None
