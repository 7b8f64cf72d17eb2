"""What to use, given what one may do: the evidence that ships with the package, filtered and counted.

Each row of `evidence.json` is a method on one network against that network as it is (`calibrant.bench.evidence`). Here
they are counted over networks. A method is *recommended* if the NLL is better beyond noise on at least two networks and
worse on none, and AUROC is not worse on more networks than it is better: calibration that spoils the ranking of errors
is no gain. Anyone can scale, so what a method's NLL is compared with is the plain network after temperature scaling;
the method is scaled too where that was measured, and neither is where nothing scaled was. Networks that others trained
on one data set are one row: there a network is what a seed is elsewhere, and splits of a test set are neither.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import median
from typing import Any

from calibrant.errors import InputError, unknown

FILE = "evidence.json"
FEWEST_NETWORKS = 2


@dataclass(frozen=True)
class Tally:
    """One metric of a method over networks (a group of others' networks counts once), `judged` with seeds enough."""

    better: int
    worse: int
    judged: int
    networks: int


@dataclass(frozen=True)
class Option:
    """A method, what it asks for, and what it did."""

    name: str
    title: str
    trainings: int
    passes: int
    change: float  # of NLL, the median over networks, relative to the plain network
    full: bool  # whether some network was trained by its full schedule
    nll: Tally
    ece: Tally
    auroc: Tally

    @property
    def recommended(self) -> bool:
        return self.nll.better >= FEWEST_NETWORKS and not self.nll.worse and self.auroc.worse <= self.auroc.better


@dataclass(frozen=True)
class Situation:
    """What one may do: train anew or not, and how many forward passes per prediction (None: any number)."""

    retrain: bool
    passes: int | None

    @property
    def says(self) -> str:
        train = "You may retrain" if self.retrain else "You may not retrain"
        if self.passes is None:
            return f"{train}; several forward passes per prediction"
        return f"{train}; {'one forward pass' if self.passes == 1 else f'up to {self.passes} passes'} per prediction"

    def allows(self, method: Mapping[str, Any]) -> bool:
        enough = self.passes is None or method["passes"] <= self.passes
        return enough and (self.retrain or not method["trainings"])


@cache
def shipped() -> Mapping[str, Any]:
    """`methods`: name → title, trainings, passes; `rows`: the evidence."""
    found: Mapping[str, Any] = json.loads((resources.files("calibrant.report") / FILE).read_text("utf-8"))
    return found


def situations(retrain: bool | None = None, passes: int | None = None) -> list[Situation]:
    """The one asked for, or all that fit what was said."""
    if passes is not None and passes < 1:
        raise InputError(f"--passes {passes}: a prediction takes at least one forward pass")
    trains = (False, True) if retrain is None else (retrain,)
    return [Situation(r, p) for r in trains for p in ((1, None) if passes is None else (passes,))]


def options(situation: Situation, source: Mapping[str, Any] | None = None) -> list[Option]:
    """Every method that was measured and that the situation allows: recommended ones first, by what they do to NLL."""
    source = source or shipped()
    allowed = {name: m for name, m in source["methods"].items() if situation.allows(m)}
    found = [_option(name, m, rows(name, source)) for name, m in allowed.items() if rows(name, source)]
    return sorted(found, key=lambda o: (not o.recommended, not o.nll.judged, o.change))


def shown(situation: Situation, found: Sequence[Option]) -> list[Option]:
    """What a table of the situation shows: where one may train, the methods without training only if recommended."""
    return [o for o in found if o.trainings or o.recommended or not situation.retrain]


def rows(method: str, source: Mapping[str, Any] | None = None) -> list[Mapping[str, Any]]:
    """The evidence of one method, network by network."""
    source = source or shipped()
    if method not in source["methods"]:
        raise unknown("method", method, source["methods"])
    return [row for row in source["rows"] if row["method"] == method]


def _option(name: str, method: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> Option:
    nll = [row["values"][_nll(name, row["values"])] for row in found]
    ece, auroc = ([row["values"][c] for row in found if c in row["values"]] for c in ("ece", "auroc"))
    change = median(v["mean"] / v["baseline"] for v in nll)
    full = any(row["scale"] == "paper" for row in found)
    about = (name, method["title"], method["trainings"], method["passes"], change, full)
    return Option(*about, _tally(nll), _tally(ece), _tally(auroc))


def _nll(name: str, values: Mapping[str, Any]) -> str:
    """The column by which a method is judged: temperature scaling itself against the plain network."""
    columns = ("nll",) if name == "temperature" else ("nll_scaled", "nll_rival", "nll")
    return next(c for c in columns if c in values)


def _tally(found: Sequence[Mapping[str, Any]]) -> Tally:
    words = Counter(v["word"] for v in found)
    return Tally(words["better"], words["worse"], words.total() - words["few seeds"], len(found))


def sentence(situation: Situation, found: Sequence[Option]) -> str:
    """What to use, in words."""
    good = [o for o in found if o.recommended]
    if not good:
        return "Nothing measured here helps beyond noise on two networks."
    trained = any(o.trainings for o in good)
    last = next((o.title for o in good if not o.trainings and o.passes == 1), "") if trained else ""
    names = [o.title if o.full else f"{o.title} (seen on shortened trainings)" for o in good if o.title != last]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return f"Use {listed}{f', then {last}' if last else ''}."
