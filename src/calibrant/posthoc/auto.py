"""The automatic choice: which map to use, by held-out NLL, with the fewest parameters that noise allows.

1. The candidates are the identity, every calibrator of the table with its candidate settings, and compositions of two
   (two smooth maps, or a smooth map and then a binning one). They are cross-validated on the same folds, the promising
   ones first, within `budget` seconds. A fit on a few items estimates how long a candidate will take; a candidate that
   takes longer than what is left of the budget is skipped.
2. Candidates within two standard errors of the best are repeated on new folds: all of them, or none if the
   budget is too small for all.
3. Among the candidates that the guard does not flag, those that are at most one standard error worse than the best (of
   their paired difference over all items) remain. The one with the fewest parameters is fitted on everything.

A top-1 set has no probability of the label. For it, the loss is that of "the predicted label is right", and the
candidates are the calibrators that can be fitted on such a set.

The ranking lists what the budget left out as skipped, and `Choice.cut` says it in words. Apart from the budget, the
result depends only on data and seed. docs/race_auto.md shows what choosing costs on real predictions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from calibrant.errors import InputError
from calibrant.posthoc.calibrator import Calibrator, Composition
from calibrant.posthoc.crossval import Folds, HeldOut, average, held_out, mean_of, scored, standard_error
from calibrant.posthoc.guard import Verdict, judge
from calibrant.posthoc.map import FittedMap, Identity
from calibrant.posthoc.toplabel import TopLabelMap
from calibrant.types import Predictions

BINNING = ("histogram_mass", "isotonic")
"""Binning maps that are tried after a smooth map. The smooth map scales all classes, these adjust the top label."""
SMOOTH_PAIRS = (("order_preserving", "structured_vector"), ("order_preserving", "structured_matrix"))
"""A map with one shape for all classes, then one with parameters of each class: they complement each other
(docs/race.md)."""
PROMISING = (
    "temperature",
    "structured_vector",
    "order_preserving",
    "structured_matrix",
    "order_preserving+structured_vector",
    "order_preserving+structured_matrix",
    "vector",
)
"""The candidates that are tried first: on nearly every set of docs/race.md one of them has the least NLL, or ties."""
ROUNDING = 1e-9
"""In nats: two candidates that differ by no more than this are the same map, computed in another order."""
_SMALL = 20_000  # logits: a smaller set needs no estimate of time
_PROBE = 200_000  # logits: of a larger set, a tenth but at most this many are fitted first


@dataclass(frozen=True)
class Unchanged(Calibrator):
    """The identity as a candidate, which all others have to beat."""

    name: ClassVar[str] = "identity"
    map: ClassVar[type[FittedMap]] = Identity
    takes_members: ClassVar[bool] = True
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = -1

    def solve(self, p: Predictions) -> FittedMap:
        return Identity()


@dataclass
class Candidate:
    """One row of the ranking while it is being made."""

    calibrator: Calibrator
    runs: list[HeldOut] = field(default_factory=list)
    status: str = "ran"
    reason: str | None = None
    seconds: float = 0.0  # duration of its last run, to know whether a repeat fits into the budget

    @property
    def held_out(self) -> HeldOut:
        return average(self.runs)


@dataclass(frozen=True)
class Choice:
    """The candidate to use, the ranking of all, and the guard's verdict from the same held-out figures."""

    calibrator: Calibrator
    ranking: tuple[dict[str, Any], ...]
    verdict: Verdict
    cut: str = ""  # what the budget left out, in words


@dataclass(frozen=True)
class Auto(Calibrator):
    budget: float = 30.0  # seconds
    folds: int = 5
    repeats: int = 3
    seed: int = 0
    name: ClassVar[str] = "auto"
    map: ClassVar[type[FittedMap]] = FittedMap
    takes_members: ClassVar[bool] = True
    takes_top1: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.budget > 0, "budget", "must be a positive number of seconds")
        self.require(self.folds >= 2, "folds", "must be at least 2")
        self.require(self.repeats >= 1, "repeats", "must be at least 1")

    def solve(self, p: Predictions) -> FittedMap:
        choice = self.choose(p)
        fitted = choice.calibrator.fit_map(p)
        return replace(fitted, record=replace(fitted.record, ranking=choice.ranking, cut=choice.cut))

    def choose(self, p: Predictions, progress: Callable[[str, float], None] | None = None) -> Choice:
        """Cross-validate and choose. `progress` is called with each name and the share of the budget that is used."""
        start = time.monotonic()

        def left() -> float:
            return self.budget - (time.monotonic() - start)

        folds = Folds(p, self.folds, self.seed)
        identity = Candidate(Unchanged(), [folds.identity])
        done = [identity]
        queue = list(singles(p))
        composed = False
        while queue:
            candidate = Candidate(queue.pop(0))
            done.append(candidate)
            if progress:
                progress(candidate.calibrator.name, min(1.0, 1 - left() / self.budget))
            self._run(candidate, folds, left)
            if not queue and not composed and p.logits is not None:
                queue, composed = list(pairs(done)), True
        repeats = 1
        while repeats < self.repeats:
            near = [c for c in done[1:] if c.status == "ran" and within(c, best(done), p, 2.0)]
            if left() <= sum(c.seconds for c in near):  # it would be unfair to repeat only some of them
                break
            folds = Folds(p, self.folds, self.seed + repeats)
            identity.runs.append(folds.identity)
            for candidate in near:
                if len(candidate.runs) == repeats:
                    cross_validate(candidate, folds)
            repeats += 1
        return replace(conclude(done, p, self.folds), cut=self._cut(done, repeats))

    def _run(self, candidate: Candidate, folds: Folds, left: Callable[[], float]) -> None:
        needed, p = 0.0, folds.p
        first = candidate.calibrator.name == PROMISING[0]  # it is cheap, and a trial would time the start-up of torch
        if left() > 0 and p.n * (p.k or 1) > _SMALL and not first:
            needed = estimate(candidate.calibrator, p, self.folds)
        if left() > needed:
            cross_validate(candidate, folds)
            return
        spent = f"the budget of {self.budget:g} s was spent"
        guess = f"would take about {needed:.2g} s of a budget of {self.budget:g} s"
        candidate.status, candidate.reason = "skipped", guess if needed and left() > 0 else spent

    def _cut(self, done: list[Candidate], repeats: int) -> str:
        """What the budget left out, in words. With a larger budget the choice may differ."""
        ran = {c.calibrator.name for c in done if c.runs}
        names = dict.fromkeys(c.calibrator.name for c in done if c.status == "skipped")
        skipped = [f"{name} with other settings" if name in ran else name for name in names]
        said = [f"not tried ({', '.join(skipped)})"] if skipped else []
        said += [f"cross-validated {repeats} of {self.repeats} times"] if repeats < self.repeats else []
        return f"the budget of {self.budget:g} s was too small for all: {'; '.join(said)}" if said else ""


def cross_validate(candidate: Candidate, folds: Folds) -> None:
    """Run the candidate once more. If its first run fails, it is out."""
    began = time.monotonic()
    try:
        candidate.runs.append(held_out(candidate.calibrator, folds))
    except InputError as error:
        if not candidate.runs:
            candidate.status, candidate.reason = "failed", str(error)
    candidate.seconds = time.monotonic() - began


def estimate(calibrator: Calibrator, p: Predictions, folds: int) -> float:
    """Seconds that cross-validation and the fit on everything will take, estimated from a fit on a few items.

    These are evenly spaced in the order of the labels, so that they hold as many classes as possible.
    """
    stride = max(10, -(-p.n * (p.k or 1) // _PROBE))
    few = p.take(torch.argsort(p.labels.cpu(), stable=True)[::stride])
    began = time.monotonic()
    try:
        fitted = calibrator.fit_map(few)
        fit = time.monotonic() - began
        scored(fitted, replace(few, origin="probe"))
    except InputError:  # too few items for this method; all items may be enough
        return 0.0
    return p.n / few.n * (folds * fit + time.monotonic() - began - fit)


def singles(p: Predictions) -> Iterator[Calibrator]:
    """Yield every calibrator with its candidate settings, and `SMOOTH_PAIRS`: `PROMISING` first, then the cheap ones.

    For a top-1 set, yield the calibrators that take one, with their first settings only: the others treat every class.
    """
    from calibrant.posthoc import CALIBRATORS

    if p.logits is None:
        yield from sorted((cls() for cls in CALIBRATORS.values() if cls.takes_top1), key=lambda c: c.cost)
        return
    smooth = [(CALIBRATORS[a], CALIBRATORS[b]) for a, b in SMOOTH_PAIRS if {a, b} <= CALIBRATORS.keys()]
    made: list[Calibrator] = [Composition(first(), second()) for first, second in smooth]
    made += [cls(**settings) for cls in CALIBRATORS.values() for settings in cls.candidates]
    promise = {name: i for i, name in reversed(list(enumerate(PROMISING)))}
    seen: set[str] = set()
    later: list[Calibrator] = []
    for c in sorted(made, key=lambda c: promise.get(c.name, len(promise))):
        if c.name in promise and c.name not in seen:  # the other settings of the same name come later
            seen.add(c.name)
            yield c
        else:
            later.append(c)
    yield from sorted(later, key=lambda c: c.cost)


def pairs(done: list[Candidate]) -> Iterator[Calibrator]:
    """Yield compositions: temperature, and the best map of all classes so far, each followed by each binning map."""
    from calibrant.posthoc import CALIBRATORS

    ran = [c for c in done if c.status == "ran" and c.runs and c.calibrator.name != "identity"]
    smooth = [c for c in ran if not issubclass(c.calibrator.map, TopLabelMap)]
    smooth.sort(key=lambda c: float(c.held_out.loss.nanmean()))
    firsts = [c.calibrator for c in smooth if c.calibrator.name == "temperature"] + [c.calibrator for c in smooth[:1]]
    for first in dict.fromkeys(firsts):
        for name in BINNING:
            if name in CALIBRATORS:
                yield Composition(first, CALIBRATORS[name]())


def best(done: list[Candidate]) -> Candidate:
    return min((c for c in done if c.status == "ran" and c.runs), key=lambda c: float(c.held_out.loss.nanmean()))


def within(candidate: Candidate, other: Candidate, p: Predictions, errors: float) -> bool:
    """Whether the loss of the candidate exceeds that of the other by at most this many paired standard errors."""
    excess = candidate.held_out.loss - other.held_out.loss
    kept = ~torch.isnan(excess)
    if candidate is other or not bool(kept.any()):
        return True
    error = standard_error(excess[kept], None if p.group is None else p.group.cpu()[kept])
    return float(excess[kept].mean()) <= max(errors * error, ROUNDING)


def conclude(done: list[Candidate], p: Predictions, folds: int) -> Choice:
    """Flag what the guard would flag, apply the one-standard-error rule, and write the ranking."""
    identity = done[0]
    for c in done[1:]:
        if c.status == "ran":
            found = verdict(c, identity, p, folds)
            if not found.ok:
                c.status, c.reason = "flagged", "; ".join(found.reasons)
    top = best(done)
    near = [c for c in done if c.status == "ran" and within(c, top, p, 1.0)]
    chosen = min(near, key=lambda c: (round(c.held_out.degrees), float(c.held_out.loss.nanmean())))
    chosen.status = "chosen"
    measured = sorted((c for c in done if c.runs), key=lambda c: float(c.held_out.loss.nan_to_num().mean()))
    rows = [_row(c, top, p) for c in [*measured, *(c for c in done if not c.runs)]]
    return Choice(chosen.calibrator, tuple(rows), verdict(chosen, identity, p, folds))


def verdict(c: Candidate, identity: Candidate, p: Predictions, folds: int) -> Verdict:
    """The guard's verdict on the repeats that the candidate took part in; the identity has run on all of them."""
    return judge(average(identity.runs[: len(c.runs)]), c.held_out, p, folds=folds)


def _row(c: Candidate, top: Candidate, p: Predictions) -> dict[str, Any]:
    row: dict[str, Any] = {"method": c.calibrator.name, "settings": c.calibrator.settings(), "status": c.status}
    if c.runs:
        row["degrees"] = round(c.held_out.degrees)
        row["nll"] = mean_of(c.held_out.loss, p.group).to_dict()
        row["excess"] = mean_of(c.held_out.loss - top.held_out.loss, p.group).to_dict()
        row["repeats"] = len(c.runs)
    if c.reason:
        row["reason"] = c.reason
    return row
