"""The cells of a suite: the units that are computed and stored one by one, so that a kill loses one cell at most."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from calibrant.errors import InputError, unknown

Kind = Literal["clean", "calibration", "corruption", "perturbation", "frequency", "outside", "natural"]

SUITES: dict[str, str] = {
    "corruptions": "types × severities of corruption (SS, AR §5.4)",
    "perturbations": "sequences that change a little from frame to frame (SS Eq. 37–39)",
    "ood": "foreign items against familiar ones (PEP §3.2, AR §5.5)",
    "frequency": "noise of one frequency after the other (SS §2.2)",
    "natural": "re-collected test sets that the user passes (DS Table 3)",
}
"""Suite → what it is. `all` is every suite; `natural` has cells only where the user passes sets."""


@dataclass(frozen=True)
class Cell:
    """One set of images, and one file of logits."""

    kind: Kind
    name: str = ""
    severity: int = 0

    @property
    def key(self) -> str:
        """The name of the cell's file, without its ending."""
        words = [self.kind, re.sub(r"[^A-Za-z0-9_.,]+", "_", self.name)] if self.name else [self.kind]
        return "-".join([*words, str(self.severity)] if self.severity else words)

    @property
    def title(self) -> str:
        return f"{self.name or self.kind} {self.severity or ''}".strip()


@dataclass(frozen=True)
class Choice:
    """What the chosen suites consist of."""

    suites: tuple[str, ...]
    types: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    perturbations: tuple[str, ...] = ()
    bands: int = 0
    outside: tuple[str, ...] = ()
    natural: tuple[str, ...] = field(default=())


def chosen_suites(text: str) -> tuple[str, ...]:
    """Return the suites that `all`, or names separated by commas, stand for."""
    if text == "all":
        return tuple(SUITES)
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in names:
        if name not in SUITES:
            raise unknown("suite", name, [*SUITES, "all"])
    if not names:
        raise InputError("--suite names no suite")
    return names


def planned(choice: Choice, *, calibration: bool) -> list[Cell]:
    """Return the cells: clean first, then the suites in their order."""
    cells = [Cell("clean")] + ([Cell("calibration")] if calibration else [])
    if "natural" in choice.suites:
        cells += [Cell("natural", name) for name in choice.natural]
    if "corruptions" in choice.suites:
        cells += [Cell("corruption", name, s) for name in choice.types for s in choice.severities]
    if "perturbations" in choice.suites:
        cells += [Cell("perturbation", name) for name in choice.perturbations]
    if "ood" in choice.suites:
        cells += [Cell("outside", name) for name in choice.outside]
    if "frequency" in choice.suites:
        cells += [Cell("frequency", "band", band) for band in range(1, choice.bands + 1)]
    _distinct(cells)
    return cells


def _distinct(cells: Sequence[Cell]) -> None:
    """Refuse two cells with one file name."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        if cell.key in seen:
            raise InputError(f"{cell.title} and {seen[cell.key].title} would be the same cell; name one of them")
        seen[cell.key] = cell
