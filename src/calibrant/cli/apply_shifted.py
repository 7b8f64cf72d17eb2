"""`calibrant apply RULE/ NEW --calibration CAL --weights COLUMN`, or `--adaptive STEP`: sets for shifted data.

The rule states how sets are made and how often they must hold the truth. Their scores are compared with those of CAL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from calibrant import files
from calibrant.cli.reading import Reading
from calibrant.decisions import AdaptiveSets, Rule, WeightedSets
from calibrant.decisions.conformal import PredictionSets
from calibrant.decisions.rule import LARGE, Decisions
from calibrant.errors import FileError, InputError, SplitError
from calibrant.functional.tensors import as_tensor
from calibrant.posthoc import overlap
from calibrant.types import Predictions


@dataclass(frozen=True)
class Shift:
    """How sets adapt to data that differ from those the rule was chosen on."""

    calibration: Annotated[
        Path | None, typer.Option(help="rule of sets: labelled items, needed by --weights and --adaptive")
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(help="rule of sets: column of both files that says how much more often such an input will appear"),
    ] = None
    adaptive: Annotated[
        float | None, typer.Option(help="rule of sets: follow a stream of labelled items with this step, e.g. 0.02")
    ] = None

    @property
    def asked(self) -> bool:
        return self.calibration is not None or self.weights is not None or self.adaptive is not None

    def sets(self, rule: Rule, new: Path, reading: Reading) -> tuple[Predictions, Decisions, dict[str, Tensor]]:
        """The items of NEW before the map, the decisions about them, and further columns to write."""
        calibration, weights, step = self.calibration, self.weights, self.adaptive
        if calibration is None or (weights is None) == (step is None):
            raise InputError("sets under shift need --calibration FILE and one of --weights COLUMN and --adaptive STEP")
        if not isinstance(rule, PredictionSets) or rule.by is not None or rule.randomised:
            raise InputError(
                "--weights and --adaptive need a rule of sets, without --by and --randomised: "
                "calibrant decide CAL --set-coverage 0.9 -o RULE/"
            )
        if rule.record.certificate["guarantee"] is not None or rule.grouped:
            raise InputError(
                "--weights and --adaptive cannot keep a guarantee or a promise about groups, and this rule makes one; "
                "choose a rule without --guarantee on independent items"
            )
        if weights is not None and reading.ignore_index is not None:
            raise InputError(
                "--weights has a number for each row, but --ignore-index drops rows; remove them from the files first"
            )
        known, p = reading.read_calibration(calibration), reading.read(new)
        if p.logits is None:
            raise InputError(
                f"{new}: sets need the probabilities of all classes, and this file has only the predicted ones"
            )
        common = 1.0 if known.fingerprint() == p.fingerprint() else overlap.share(overlap.sketch(known), p)
        if common >= LARGE:
            part = "" if common == 1 else f"{common:.0%} of "
            raise SplitError(f"{new}: holds {part}the calibration items, whose sets flatter it; give other items")
        settings: dict[str, Any] = {
            "coverage": rule.record.certificate["coverage"],
            "method": rule.method,
            "map": rule.map,
        }
        if rule.method == "raps":
            settings |= {"penalty": rule.penalty, "k_reg": rule.k_reg}
        if weights is not None:
            sets = WeightedSets(known, weights=column(calibration, weights), **settings)
            return p, sets(p.logits, weights=column(new, weights)), {}
        settings["step"] = step
        return p, *stream(AdaptiveSets(known, **settings), p)


def stream(sets: AdaptiveSets, p: Predictions) -> tuple[Decisions, dict[str, Tensor]]:
    """The decisions about the items in the order of the file, and the level of each set.

    The truth of an item is known before the next one is decided.
    """
    assert p.logits is not None
    found, levels = [], []
    for i in range(p.n):
        levels.append(sets.level)
        found.append(sets(p.logits[i : i + 1]))
        sets.update(found[-1], p.labels[i : i + 1])
    accepted, predicted = (torch.cat([getattr(d, name) for d in found]) for name in ("accepted", "predicted"))
    held = torch.cat([d.sets for d in found if d.sets is not None])
    return Decisions(accepted, predicted, held), {"level": torch.tensor(levels, dtype=torch.float64)}


def column(path: Path, name: str) -> Tensor:
    """A column of numbers in a file of predictions."""
    found = files.reader(path).read(path)
    if name not in found.names:
        raise FileError(f"{path}: no {found.word} {name!r}; {found.found}")
    return as_tensor(found.load(name), name)
