"""Judge a rule on other items than those it was chosen on: shares with intervals, and whether its promise is broken.

A promise counts as broken if so few hits had a probability below 2.5% if it were kept. Hits are binomial with at least
the promised share. For sets without a `guarantee`, whose promise is on average over calibration sets, they are
beta-binomial, with the Beta distribution of the coverage given the n items of the choice. A rule by class or group is
tested in each, with the 2.5% divided among them.

If items come in groups and the rule is not by group, every share is the mean over groups of the share in each. A rule
that was chosen on groups promises this mean, and `below` tests it; the same test serves mean losses. A rule that was
chosen on items is not judged on groups, nor the other way round: the numbers are shown without a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.decisions.conformal import PredictionSets
from calibrant.decisions.costs import LeastCost, compared
from calibrant.decisions.quantile import place
from calibrant.decisions.rule import Decisions, Rule, asked, percent, units_of
from calibrant.decisions.threshold import Threshold
from calibrant.functional.binomial import clopper_pearson
from calibrant.posthoc.crossval import mean_of
from calibrant.types import Estimate, Predictions

SHOWN = 12
"""A table shows this many sizes of sets, or classes, one by one."""


@dataclass(frozen=True)
class Judgement:
    """Estimates by name, tables of rows by name, and one sentence that says whether the promise was kept."""

    sentence: str
    estimates: Mapping[str, Estimate]
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    reused: bool = False
    promise: tuple[str, float] | None = None  # the name of an estimate, and the least value that was promised
    broken: bool | None = None
    """Whether the items contradict the promise; None if nothing is promised, or if there is no verdict."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "sentence": self.sentence,
            **{name: e.to_dict() for name, e in self.estimates.items()},
            **self.tables,
            "allow_reuse": self.reused,
        }


def judge(rule: Rule, p: Predictions, *, allow_reuse: bool = False) -> Judgement:
    """Judge the rule on these items, which must not be those it was chosen on."""
    rule.refuse_reuse(p, allow_reuse)
    after = rule.mapped(p)
    d = rule.decide(after)
    right = d.predicted == p.labels.cpu()
    estimates = {
        "accepted": share(d.accepted, p.group),
        "accuracy_accepted": share(right[d.accepted], group_of(p, d.accepted)),
        "accuracy_rejected": share(right[~d.accepted], group_of(p, ~d.accepted)),
    }
    if isinstance(rule, PredictionSets):
        assert d.sets is not None
        return _sets(rule, p, d.sets, estimates, allow_reuse)
    if isinstance(rule, LeastCost):
        found = compared(rule, after)
        names = [name for name in ("cost", "argmax", "threshold", "saved") if name in found]
        costs = {name: Estimate(**found[name], method="normal") for name in names}
        said = f"an item costs {costs['cost'].value:.4g}, {costs['saved'].value:.4g} less than by the likeliest class"
        return Judgement(said, costs | estimates, reused=allow_reuse)
    c = rule.record.certificate
    said = f"{percent(estimates['accepted'].value or 0)} of items are accepted"
    if not isinstance(rule, Threshold):
        return Judgement(said, estimates, reused=allow_reuse)
    if c["loss"] is not None:
        return _loss(rule, p, d, Judgement(said, estimates, reused=allow_reuse))
    cells = Cells.of(rule, p, d.predicted)
    tables = {}
    if rule.by is not None:
        tables[f"by_{rule.by}"] = [
            {rule.by: name, "items": int(those.sum()), "accuracy_accepted": share(right[those & d.accepted])}
            for name, those in cells
        ]
    promise = ("accuracy_accepted", 1 - c["risk"])
    broken = cells.broken(right.double(), d.accepted, promise[1])
    return _kept(Judgement(said, estimates, tables, allow_reuse, promise, broken), "of the accepted are right")


def _loss(rule: Threshold, p: Predictions, d: Decisions, j: Judgement) -> Judgement:
    """Add the mean loss of the accepted, if the rule has a table of losses."""
    if not rule.loss.numel() or not bool(d.accepted.any()):
        return j
    c = rule.record.certificate
    paid = rule.loss[p.labels.cpu(), d.predicted]
    e, most = over_groups(paid[d.accepted], group_of(p, d.accepted)), c["risk"] * c["scale"]
    broken = Cells.of(rule, p, d.predicted).broken(1 - paid / c["scale"], d.accepted, 1 - c["risk"])
    said = (
        f"{j.sentence}; their mean loss is {e.value:.4g} [{e.low:.4g}, {e.high:.4g}], at most {most:.4g} was promised"
    )
    shown = {"loss_accepted": e, **j.estimates}
    return replace(j, sentence=f"{said}: {VERDICT[broken]}", estimates=shown, broken=broken)


@dataclass(frozen=True)
class Cells:
    """The parts of the items that have a promise of their own: the classes, the groups, or all items as one part."""

    cell: Tensor
    names: tuple[str, ...]
    chosen_on: Sequence[int] | None  # items of the choice in each part, if the promise is on average over choices
    coverage: float
    group: Tensor | None  # the group of each item, if the promise is about groups
    comparable: bool  # the rule was chosen on groups and is judged on groups, or neither

    @classmethod
    def of(cls, rule: Rule, p: Predictions, classes: Tensor) -> Cells:
        c = rule.record.certificate
        names: tuple[str, ...] = ("",)
        if rule.by is not None:
            names = rule.groups or p.classes or tuple(map(str, range(rule.record.k or int(classes.max()) + 1)))
        average = isinstance(rule, PredictionSets) and c["guarantee"] is None
        sizes = ([c["n"]] if rule.by is None else list((c.get("cells") or {}).values())) if average else None
        group = units_of(p, rule.by)
        same = rule.grouped == (group is not None)
        return cls(rule.cell(p, classes.cpu()), names, sizes or None, c.get("coverage", 0.0), group, same)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of each part that occurs, and which items are in it."""
        for i in torch.unique(self.cell).tolist():
            yield self.names[i], self.cell == i

    def broken(self, hits: Tensor, among: Tensor, promised: float) -> bool | None:
        """Whether a part has too few hits (in 0…1); None if there is no verdict."""
        if not self.comparable:
            return None
        present = torch.unique(self.cell[among]).tolist()
        return any(self.chance(i, hits, among & (self.cell == i), promised) < 0.025 / len(present) for i in present)

    def chance(self, i: int, hits: Tensor, those: Tensor, promised: float) -> float:
        """The probability of so few hits in part i if its promise were kept."""
        from scipy.stats import betabinom, binom

        n = None if self.chosen_on is None else self.chosen_on[i]
        if self.group is not None:
            return below(group_means(hits[those], self.group[those]), promised, n)
        if bool(((hits > 0) & (hits < 1)).any()):
            return below(hits[those], promised, n)
        count, right = int(those.sum()), int(hits[those].sum())
        if n is None:
            return float(binom.cdf(right, count, promised))
        r = place(n, self.coverage, None)
        return 1.0 if r > n else float(betabinom.cdf(right, count, r, n + 1 - r))


def below(values: Tensor, promised: float, chosen_on: int | None) -> float:
    """P-value of “the mean is at least what was promised” for independent values in 0…1 (Student's test).

    A further value of 1 stands for what was not seen: without it, two values of 0 would prove anything. A promise that
    is on average over choices on `chosen_on` values also varies with these.
    """
    from scipy.stats import t

    x = np.append(values.numpy(), 1.0)
    if x.mean() >= promised:
        return 1.0
    error = x.std(ddof=1) * np.sqrt(1 / len(x) + (0 if chosen_on is None else 1 / chosen_on))
    return float(t.cdf((x.mean() - promised) / error, len(x) - 1))


def _sets(
    rule: PredictionSets, p: Predictions, sets: Tensor, estimates: dict[str, Estimate], reused: bool
) -> Judgement:
    labels = p.labels.cpu()
    hit, size = sets.gather(1, labels[:, None])[:, 0], sets.sum(1)
    estimates = {
        "coverage": share(hit, p.group),
        "set_size": over_groups(size.double(), p.group),
        "empty_sets": share(size == 0, p.group),
    } | estimates
    which = {str(s): size == s for s in torch.unique(size)[:SHOWN].tolist()}
    if len(torch.unique(size)) > SHOWN:
        largest = int(torch.unique(size)[SHOWN - 1])
        which[f"> {largest}"] = size > largest
    sizes: list[dict[str, Any]] = [
        {"size": name, "items": int(those.sum()), "coverage": share(hit[those], group_of(p, those))}
        for name, those in which.items()
    ]
    names = p.classes or tuple(map(str, range(sets.shape[1])))
    classes = [
        {
            "class": names[k],
            "items": int((labels == k).sum()),
            "coverage": share(hit[labels == k], group_of(p, labels == k)),
            "set_size": over_groups(size[labels == k].double(), group_of(p, labels == k)),
        }
        for k in torch.unique(labels).tolist()
    ]
    said = f"sets of {estimates['set_size'].value:.2f} classes on average"
    promise = ("coverage", rule.record.certificate["coverage"])
    cells = Cells.of(rule, p, labels)
    tables = {"by_size": sizes, "by_class": classes}
    if rule.by == "group":
        tables["by_group"] = [
            {"group": name, "items": int(those.sum()), "coverage": share(hit[those])} for name, those in cells
        ]
    broken = cells.broken(hit.double(), torch.ones_like(hit), promise[1])
    return _kept(Judgement(said, estimates, tables, reused, promise, broken), "hold the truth")


def group_of(p: Predictions, which: Tensor) -> Tensor | None:
    return None if p.group is None else p.group.cpu()[which]


def over_groups(values: Tensor, group: Tensor | None) -> Estimate:
    """The mean over items, or over the means of groups, with its normal interval."""
    return mean_of(values if group is None else group_means(values, group), None)


def group_means(values: Tensor, group: Tensor) -> Tensor:
    _, place, size = torch.unique(group.cpu(), return_inverse=True, return_counts=True)
    total = torch.zeros(len(size), dtype=values.dtype).index_add_(0, place, values)
    mean: Tensor = total / size
    return mean


def share(hits: Tensor, group: Tensor | None = None) -> Estimate:
    """The share of True with its Clopper–Pearson interval, or the mean share of groups with a normal interval."""
    if not len(hits):
        return Estimate(None, reason="no such item")
    if group is not None:
        e = over_groups(hits.double(), group)
        return replace(e, low=max(0.0, e.low or 0.0), high=min(1.0, e.high or 0.0), method="normal, over groups")
    low, high = clopper_pearson(int(hits.sum()), len(hits))
    return Estimate(float(hits.double().mean()), float(low), float(high), method="Clopper–Pearson")


VERDICT = {
    True: "the promise is broken here",
    False: "in line with the promise",
    None: "no verdict, because either the rule was chosen on items in groups or these items are in groups, not both",
}


def _kept(j: Judgement, what: str) -> Judgement:
    """Add to the sentence whether the items contradict the promise."""
    assert j.promise is not None
    seen, promised = j.estimates[j.promise[0]], asked(j.promise[1])
    if seen.value is None or seen.low is None or seen.high is None:
        return j
    interval = f"{percent(seen.value)} [{percent(seen.low)}, {percent(seen.high)}]"
    return replace(j, sentence=f"{j.sentence}; {interval} {what}, {promised} were promised: {VERDICT[j.broken]}")
