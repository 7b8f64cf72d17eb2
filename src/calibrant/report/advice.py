"""What to use, given what you may do: the evidence that ships with the package, filtered and counted.

Each row of `evidence.json` compares a method with the plain network, on one network (`calibrant.bench.evidence`). Here
the rows are counted over networks. A method is *recommended* if its NLL is better beyond noise on at least two networks
and worse on none, and its AUROC is not worse on more networks than it is better: calibration that spoils the ranking of
errors is no gain. Anyone can use temperature scaling, so the NLL is compared with the plain network after temperature
scaling. The method is scaled too if that was measured. If nothing scaled was measured, neither side is, and the method
is *promising* at best.
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
SCALING = "temperature"


HEAD = ("method", "train", "pass", "change", "NLL", "ECE", "AUROC")
NOTES = (
    "train: networks to train from the start; pass: forward passes per prediction.",
    "change: the median change of the NLL, relative to the plain network after temperature scaling (for temperature "
    "scaling itself, before it).",
    "NLL, ECE, AUROC: the networks on which the method is better / worse / all that have three seeds or more. Better "
    "and worse are beyond noise, after Holm's correction over the methods of a network.",
    "A method is recommended if its NLL is better on two networks or more and worse on none, and its AUROC is not "
    "worse on more networks than it is better.",
    "† Compared without temperature scaling on some networks, so promising at best. ‡ On shortened trainings only.",
)
"""What the columns of a table of options mean."""


@dataclass(frozen=True)
class Tally:
    """On how many networks one metric of a method is better or worse; `judged` of `networks` have enough seeds.

    A group of networks that others trained counts as one network.
    """

    better: int
    worse: int
    judged: int
    networks: int


@dataclass(frozen=True)
class Option:
    """A method, its cost, and its effects."""

    name: str
    title: str
    trainings: int
    passes: int
    change: float  # of NLL, the median over networks, relative to the plain network
    full: bool  # whether some network was trained by its full schedule
    unscaled: bool  # whether another method than temperature scaling is compared with an unscaled network
    nll: Tally
    ece: Tally
    auroc: Tally

    @property
    def recommended(self) -> bool:
        return self.helps and not self.unscaled

    @property
    def promising(self) -> bool:
        """Whether the method helps, but perhaps no more than temperature scaling would."""
        return self.helps and self.unscaled

    @property
    def helps(self) -> bool:
        return self.nll.better >= FEWEST_NETWORKS and not self.nll.worse and self.auroc.worse <= self.auroc.better


@dataclass(frozen=True)
class Situation:
    """What you may do: train again or not, and how many forward passes a prediction may take (None: any number)."""

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
    """Return the shipped evidence: `methods` (name → title, trainings, passes) and `rows`."""
    found: Mapping[str, Any] = json.loads((resources.files("calibrant.report") / FILE).read_text("utf-8"))
    return found


def situations(retrain: bool | None = None, passes: int | None = None) -> list[Situation]:
    """Return every situation that fits what is given; the last one allows the most."""
    if passes is not None and passes < 1:
        raise InputError(f"--passes {passes}: a prediction takes at least one forward pass")
    trains = (False, True) if retrain is None else (retrain,)
    return [Situation(r, p) for r in trains for p in ((1, None) if passes is None else (passes,))]


def options(situation: Situation, source: Mapping[str, Any] | None = None) -> list[Option]:
    """Return the measured methods that the situation allows: recommended first, then by the change of NLL."""
    source = source or shipped()
    allowed = {name: m for name, m in source["methods"].items() if situation.allows(m)}
    found = [_option(name, m, rows(name, source)) for name, m in allowed.items() if rows(name, source)]
    return sorted(found, key=lambda o: (not o.recommended, not o.promising, not o.nll.judged, o.change))


def rows(method: str, source: Mapping[str, Any] | None = None) -> list[Mapping[str, Any]]:
    """Return the evidence of one method, network by network."""
    source = source or shipped()
    if method not in source["methods"]:
        raise unknown("method", method, source["methods"])
    return [row for row in source["rows"] if row["method"] == method]


def _option(name: str, method: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> Option:
    columns = [_nll(name, row["values"]) for row in found]
    nll = [row["values"][column] for row, column in zip(found, columns, strict=True)]
    ece, auroc = ([row["values"][c] for row in found if c in row["values"]] for c in ("ece", "auroc"))
    change = median(v["mean"] / v["baseline"] for v in nll)
    full = any(row["scale"] == "paper" for row in found)
    unscaled = "nll" in columns and name != SCALING
    about = (name, method["title"], method["trainings"], method["passes"], change, full, unscaled)
    return Option(*about, _tally(nll), _tally(ece), _tally(auroc))


def _nll(name: str, values: Mapping[str, Any]) -> str:
    """Return the column that judges a method; temperature scaling itself is compared with the unscaled network."""
    columns = ("nll",) if name == SCALING else ("nll_scaled", "nll_rival", "nll")
    return next(c for c in columns if c in values)


def _tally(found: Sequence[Mapping[str, Any]]) -> Tally:
    words = Counter(v["word"] for v in found)
    return Tally(words["better"], words["worse"], words.total() - words["few seeds"], len(found))


def sentence(found: Sequence[Option]) -> str:
    """Say which method to use, with the evidence for it."""
    good = [o for o in found if o.recommended]
    if not good:
        return "Nothing measured here helps beyond noise on two networks."
    last = next((o for o in good if o.name == SCALING), None) if len(good) > 1 else None
    said = f"Use {_listed([o for o in good if o is not last])}" + (f", then {_listed([last])}." if last else ".")
    promising = [o for o in found if o.promising]
    return said + (f" Promising: {_listed(promising)}." if promising else "")


def _listed(found: Sequence[Option]) -> str:
    *others, last = [f"{o.title} ({_evidence(o)})" for o in found]
    return f"{', '.join(others)} or {last}" if others else last


def _evidence(o: Option) -> str:
    """Say what the evidence for a method is, and how it is limited."""
    said = [f"NLL better on {o.nll.better} of {o.nll.judged} networks"]
    said += [f"ECE worse on {o.ece.worse}"] if o.ece.worse else []
    said += [f"AUROC worse on {o.auroc.worse}"] if o.auroc.worse else []
    said += ["compared without temperature scaling"] if o.unscaled else []
    said += [] if o.full else ["on shortened trainings only"]
    return ", ".join(said)


def line(o: Option) -> tuple[str, ...]:
    """Return one row of a table of options, in the order of `HEAD`."""
    change = f"{100 * o.change:+z.0f}%".replace("-", "\N{MINUS SIGN}") + "†" * o.unscaled + "‡" * (not o.full)
    tallies = (f"{t.better}/{t.worse}/{t.judged}" for t in (o.nll, o.ece, o.auroc))
    return (o.title, str(o.trainings), str(o.passes), change, *tallies)
