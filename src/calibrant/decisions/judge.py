"""What a rule does to other items than those it was chosen on: every share with its exact interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from calibrant.decisions.conformal import PredictionSets
from calibrant.decisions.costs import LeastCost, compared
from calibrant.decisions.rule import Rule, asked, percent
from calibrant.functional.binomial import clopper_pearson
from calibrant.posthoc.crossval import mean_of
from calibrant.types import Estimate, Predictions

SHOWN = 12
"""Sizes of sets, and classes, that a table shows one by one."""


@dataclass(frozen=True)
class Judgement:
    """`estimates` by name, `tables` of rows by name, and one sentence: was the promise kept?"""

    sentence: str
    estimates: Mapping[str, Estimate]
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    reused: bool = False
    promise: tuple[str, float] | None = None  # the estimate that it is about, and what was promised at least

    @property
    def broken(self) -> bool:
        """Whether the items contradict the promise: the whole interval lies below it."""
        if self.promise is None:
            return False
        high = self.estimates[self.promise[0]].high
        return high is not None and high < self.promise[1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "sentence": self.sentence,
            **{name: e.to_dict() for name, e in self.estimates.items()},
            **self.tables,
            "allow_reuse": self.reused,
        }


def judge(rule: Rule, p: Predictions, *, allow_reuse: bool = False) -> Judgement:
    """The rule on these items, which must not be those it was chosen on."""
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
    promise = ("accuracy_accepted", 1 - c["risk"]) if c["loss"] is None else None
    return _kept(Judgement(said, estimates, reused=allow_reuse, promise=promise), "of the accepted are right")


def _sets(
    rule: PredictionSets, p: Predictions, sets: Tensor, estimates: dict[str, Estimate], reused: bool
) -> Judgement:
    labels = p.labels.cpu()
    hit, size = sets.gather(1, labels[:, None])[:, 0], sets.sum(1)
    estimates = {
        "coverage": share(hit, p.group),
        "set_size": mean_of(size.double(), p.group),
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
            "set_size": mean_of(size[labels == k].double(), group_of(p, labels == k)),
        }
        for k in torch.unique(labels).tolist()
    ]
    said = f"sets of {estimates['set_size'].value:.2f} classes on average"
    promise = ("coverage", rule.record.certificate["coverage"])
    tables = {"by_size": sizes, "by_class": classes}
    return _kept(Judgement(said, estimates, tables, reused, promise), "hold the truth")


def group_of(p: Predictions, which: Tensor) -> Tensor | None:
    return None if p.group is None else p.group.cpu()[which]


def share(hits: Tensor, group: Tensor | None = None) -> Estimate:
    """The share of True, with Clopper–Pearson's interval (in groups: a normal one over them); None of nothing."""
    if not len(hits):
        return Estimate(None, reason="no such item")
    if group is not None:
        e = mean_of(hits.double(), group.cpu())
        return replace(e, low=max(0.0, e.low or 0.0), high=min(1.0, e.high or 0.0), method="normal, over groups")
    low, high = clopper_pearson(int(hits.sum()), len(hits))
    return Estimate(float(hits.double().mean()), float(low), float(high), method="Clopper–Pearson")


def _kept(j: Judgement, what: str) -> Judgement:
    """With whether the items contradict the promise in its sentence."""
    if j.promise is None:
        return j
    seen, promised = j.estimates[j.promise[0]], asked(j.promise[1])
    if seen.value is None or seen.low is None or seen.high is None:
        return j
    verdict = "the promise is broken here" if j.broken else "in line with the promise"
    interval = f"{percent(seen.value)} [{percent(seen.low)}, {percent(seen.high)}]"
    return replace(j, sentence=f"{j.sentence}; {interval} {what}, {promised} were promised: {verdict}")
