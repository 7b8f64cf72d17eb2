"""The automatic choice: which map to use, by held-out NLL, with the fewest parameters that noise allows.

1. Every calibrator of the table with its candidate settings, the identity, and compositions of two (two smooth maps,
   or a smooth one and then a binning one) are cross-validated on the same folds, the promising ones first, within
   `budget` seconds. A few items first tell how long a candidate would take; what does not fit is not begun.
2. Those within two standard errors of the best are repeated on fresh folds.
3. Among the candidates that the guard would not flag, take the one with the fewest parameters that is worse than none
   of the others by more than one standard error of their paired difference over all items, and fit it on everything.
   (Not only than the best: close relatives of the best can be told apart where it cannot.) The error is that of
   overlapping folds, as in the guard; with the plain one, a third of sets made with one temperature got more.

The price of rule 3 is known: where a second set of the same size is the judge, such a choice is found worse beyond two
plain standard errors with probability Φ(f/2 − 1)² at most, f = 1.5 being the ratio of the two errors: a sixth.

What the budget cut is listed as skipped. Apart from that, the result depends on data and seed alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from calibrant.errors import InputError
from calibrant.functional.scores import reduce
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.compose import Composition
from calibrant.posthoc.crossval import HeldOut, average, folds_of, held_out, mean_of, standard_error
from calibrant.posthoc.guard import Verdict, judge, overlap
from calibrant.posthoc.map import FittedMap, Identity
from calibrant.types import Predictions

SECONDS = ("histogram_mass", "isotonic")
"""Binning maps tried after a smooth one: it sets the scale of all classes, they the top label's confidence."""
BENT = (("order_preserving", "structured_vector"), ("order_preserving", "structured_matrix"))
"""One shape for all classes, then each class's own: what either lacks, the other has (docs/race.md)."""
PROMISING = (
    "temperature",
    "structured_vector",
    "order_preserving",
    "structured_matrix",
    "order_preserving+structured_vector",
    "order_preserving+structured_matrix",
    "vector",
)
"""First in line for the budget: what has the least NLL, or ties with it, on nearly every set of docs/race.md."""
_SMALL = 20_000  # numbers up to which nothing takes long; of a larger set, a tenth and at most _PROBE are timed first
_PROBE = 200_000


@dataclass(frozen=True)
class Unchanged(Calibrator):
    """The identity as a candidate: what every other one has to beat."""

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
    seconds: float = 0.0  # of its last run: a repeat that the budget cannot hold is not begun

    @property
    def held_out(self) -> HeldOut:
        return average(self.runs)


@dataclass(frozen=True)
class Choice:
    """The candidate to use, everything that was compared, and the guard's verdict from the same held-out figures."""

    calibrator: Calibrator
    ranking: tuple[dict[str, Any], ...]
    verdict: Verdict


@dataclass(frozen=True)
class Auto(Calibrator):
    budget: float = 30.0  # seconds
    folds: int = 5
    repeats: int = 3
    seed: int = 0
    name: ClassVar[str] = "auto"
    map: ClassVar[type[FittedMap]] = FittedMap
    takes_members: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.budget > 0:
            raise InputError(f"budget={self.budget}; it must be a positive number of seconds")
        if self.folds < 2 or self.repeats < 1:
            raise InputError(f"folds={self.folds}, repeats={self.repeats}; at least 2 folds and 1 repeat are needed")

    def solve(self, p: Predictions) -> FittedMap:
        choice = self.choose(p)
        fitted = choice.calibrator.fold(p)
        return fitted.with_record(replace(fitted.record, ranking=choice.ranking))

    def choose(self, p: Predictions, progress: Callable[[str, float], None] | None = None) -> Choice:
        """The candidate to use and the whole ranking. `progress` hears each name and the share of the budget used."""
        start = time.monotonic()
        if p.logits is None:
            raise InputError(
                f"auto compares by NLL, but {p.source or 'this set'} holds only predicted and confidence; "
                "name a method: histogram, histogram_mass or isotonic"
            )

        def left() -> float:
            return self.budget - (time.monotonic() - start)

        fold = folds_of(p, self.folds, self.seed)
        identity = Candidate(Unchanged(), [held_out(None, p, fold)])
        done = [identity]
        queue = list(singles())
        composed = False
        while queue:
            candidate = Candidate(queue.pop(0))
            done.append(candidate)
            if progress:
                progress(candidate.calibrator.name, min(1.0, 1 - left() / self.budget))
            self._run(candidate, p, fold, left)
            if not queue and not composed:
                queue, composed = list(pairs(done)), True
        for repeat in range(1, self.repeats):
            fold = folds_of(p, self.folds, self.seed + repeat)
            near = [c for c in done if c.status == "ran" and within(c, best(done), p, 2.0)]
            identity.runs.append(held_out(None, p, fold))
            for candidate in near:
                if candidate is not identity and len(candidate.runs) == repeat:
                    self._run(candidate, p, fold, left)
        return conclude(done, p, self.folds)

    def _run(self, candidate: Candidate, p: Predictions, fold: torch.Tensor, left: Callable[[], float]) -> None:
        needed = candidate.seconds
        first = candidate.calibrator.name == PROMISING[0]  # the cheapest; timing a few items would time the first call
        if not candidate.runs and left() > 0 and p.n * (p.k or 1) > _SMALL and not first:
            needed = estimate(candidate.calibrator, p, self.folds)
        if left() <= needed:
            if not candidate.runs:
                spent = f"the budget of {self.budget:g} s was spent"
                guess = f"would take about {needed:.2g} s of a budget of {self.budget:g} s"
                candidate.status, candidate.reason = "skipped", guess if needed and left() > 0 else spent
            return
        try:
            began = time.monotonic()
            candidate.runs.append(held_out(candidate.calibrator, p, fold))
            candidate.seconds = time.monotonic() - began
        except InputError as error:
            if not candidate.runs:
                candidate.status, candidate.reason = "failed", str(error)


def estimate(calibrator: Calibrator, p: Predictions, folds: int) -> float:
    """Seconds that cross-validation and the fit on everything would take, from a fit on a few items.

    They are strided through items ordered by label, so that they hold every class they can.
    """
    stride = max(10, -(-p.n * (p.k or 1) // _PROBE))
    few = p.take(torch.argsort(p.labels.cpu(), stable=True)[::stride])
    began = time.monotonic()
    try:
        fitted = calibrator.fold(few)
        fit = time.monotonic() - began
        reduce(fitted.predictions(replace(few, origin="probe")), classwise=False)
    except InputError:  # too few for this method: nothing is known, and all of them may well be enough
        return 0.0
    return p.n / few.n * (folds * fit + time.monotonic() - began - fit)


def singles() -> Iterator[Calibrator]:
    """Every calibrator of the table with each of its candidate settings, and `BENT`: `PROMISING`, then cheap ones."""
    from calibrant.posthoc import CALIBRATORS

    bent = [(CALIBRATORS[a], CALIBRATORS[b]) for a, b in BENT if {a, b} <= CALIBRATORS.keys()]
    made: list[Calibrator] = [Composition(first(), second()) for first, second in bent]
    made += [cls(**settings) for cls in CALIBRATORS.values() for settings in cls.candidates]
    promise = {name: i for i, name in reversed(list(enumerate(PROMISING)))}
    seen: set[str] = set()
    later: list[Calibrator] = []
    for c in sorted(made, key=lambda c: promise.get(c.name, len(promise))):
        if c.name in promise and c.name not in seen:  # its further settings wait
            seen.add(c.name)
            yield c
        else:
            later.append(c)
    yield from sorted(later, key=lambda c: c.cost)


def pairs(done: list[Candidate]) -> Iterator[Calibrator]:
    """Temperature, and the best map of all classes so far, each followed by each binning map."""
    from calibrant.posthoc import CALIBRATORS

    ran = [c for c in done if c.status == "ran" and c.runs and c.calibrator.name != "identity"]
    smooth = [c for c in ran if c.calibrator.name not in SECONDS and not c.calibrator.takes_top1]
    smooth.sort(key=lambda c: float(c.held_out.loss.nanmean()))
    firsts = [c.calibrator for c in smooth if c.calibrator.name == "temperature"] + [c.calibrator for c in smooth[:1]]
    for first in dict.fromkeys(firsts):
        for name in SECONDS:
            if name in CALIBRATORS:
                yield Composition(first, CALIBRATORS[name]())


def best(done: list[Candidate]) -> Candidate:
    return min((c for c in done if c.status == "ran" and c.runs), key=lambda c: float(c.held_out.loss.nanmean()))


def within(candidate: Candidate, other: Candidate, p: Predictions, errors: float) -> bool:
    """Is the candidate's paired excess over the other at most so many standard errors of that difference?"""
    excess = candidate.held_out.loss - other.held_out.loss
    kept = ~torch.isnan(excess)
    if candidate is other or not bool(kept.any()):
        return True
    error = standard_error(excess[kept], None if p.group is None else p.group.cpu()[kept])
    return float(excess[kept].mean()) <= errors * error


def conclude(done: list[Candidate], p: Predictions, folds: int) -> Choice:
    """Flag what the guard would flag, apply the one-standard-error rule, and write the ranking."""
    identity = done[0]
    for c in done[1:]:
        if c.status == "ran":
            found = verdict(c, identity, p, folds)
            if not found.ok:
                c.status, c.reason = "flagged", "; ".join(found.reasons)
    top = best(done)
    ran = sorted((c for c in done if c.status == "ran"), key=lambda c: float(c.held_out.loss.nanmean()))
    for chosen in sorted(ran, key=lambda c: round(c.held_out.degrees)):  # stable: of equals, the better first
        if all(within(chosen, other, p, overlap(folds)) for other in ran):  # true of the best at the latest
            break
    chosen.status = "chosen"
    measured = sorted((c for c in done if c.runs), key=lambda c: float(c.held_out.loss.nan_to_num().mean()))
    rows = [_row(c, top, p) for c in [*measured, *(c for c in done if not c.runs)]]
    return Choice(chosen.calibrator, tuple(rows), verdict(chosen, identity, p, folds))


def verdict(c: Candidate, identity: Candidate, p: Predictions, folds: int) -> Verdict:
    """The guard's, on the repeats that the candidate took part in: the identity has run on all of them."""
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
