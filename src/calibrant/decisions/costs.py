"""The action of least expected cost: argmin_a Σ_k p_k C[k, a], where C[k, a] is the cost of action a if the truth is k.

It is the best rule if the probabilities are right (Elkan 2001), so it belongs after a map. An action called `abstain`
hands the item to a person. No label is used to choose the rule, so its mean cost over the items is an honest estimate
of its cost on new ones. It is compared, item by item, with what people do today: they act on the likeliest class, or,
if there is an action `abstain`, they act if the confidence reaches a threshold (here the best one in hindsight).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.decisions.rule import Decisions, Rule, batches, percent
from calibrant.errors import InputError
from calibrant.functional.chunks import CHUNK
from calibrant.functional.tensors import as_tensor
from calibrant.posthoc.crossval import mean_of
from calibrant.posthoc.map import FitRecord
from calibrant.posthoc.toplabel import top_of
from calibrant.types import Estimate, Predictions

ABSTAIN = "abstain"


@dataclass(frozen=True, eq=False)
class LeastCost(Rule):
    """The cheapest action. `costs` [K, A] holds the cost of each action for each truth."""

    costs: Tensor
    actions: tuple[str, ...]
    kind: ClassVar[str] = "costs"
    outputs: ClassVar[tuple[str, ...]] = ("accepted", "action")

    def decide(self, p: Predictions) -> Decisions:
        action = torch.empty(p.n, dtype=torch.long)
        for rows, z in batches(p, CHUNK):
            action[rows] = (torch.softmax(z, -1) @ self.costs).argmin(1)
        return Decisions(accepted=action != self.abstain, predicted=top_of(p).predicted.cpu(), action=action)

    def in_graph(self, logits: Tensor, predicted: Tensor, confidence: Tensor, unknown: Tensor) -> tuple[Tensor, ...]:
        action = (torch.softmax(logits, -1) @ self.costs).argmin(-1).masked_fill(unknown, self.abstain)
        return (action != self.abstain) & ~unknown, action

    @property
    def formula(self) -> str:
        return "p = softmax(z'); action = argmin_a Σ_k p_k costs_ka; accept if it is not abstain"

    @property
    def abstain(self) -> int:
        return self.actions.index(ABSTAIN) if ABSTAIN in self.actions else -1

    @property
    def sentence(self) -> str:
        c = self.record.certificate
        said = f"the cheapest of {len(self.actions)} actions costs {shown(c['cost'])} an item"
        against = [f"{shown(c[name])} {what}" for name, what in OTHERS.items() if c.get(name) is not None]
        said += f", against {', '.join(against)}"
        return said + (f"; {percent(c['abstained'])} of items are handed to a person" if self.abstain >= 0 else "")


OTHERS = {"argmax": "by acting on the likeliest class", "threshold": "with the best threshold"}


def shown(e: dict[str, float]) -> str:
    return f"{e['value']:.4g} [{e['low']:.4g}, {e['high']:.4g}]"


def cost_table(costs: Any, actions: Sequence[str] | None, p: Predictions) -> tuple[Tensor, tuple[str, ...]]:
    """Return the checked table and the names of its columns; the columns of a square table are classes by default."""
    where = f"{p.source}: " if p.source else ""
    if p.logits is None:
        raise InputError(f"{where}costs need the probabilities of all classes, and this is a top-1 set")
    table = as_tensor(costs, "costs").double()
    if table.ndim != 2 or table.shape[0] != p.k or table.shape[1] < 2:
        raise InputError(
            f"{where}costs are a table of {' × '.join(map(str, table.shape))}; give one row for each of the {p.k} "
            "classes and one column for each of two actions or more"
        )
    if not bool(torch.isfinite(table).all()):
        raise InputError("costs must be finite numbers")
    count = int(table.shape[1])
    names = tuple(actions or (p.classes if p.classes and count == p.k else map(str, range(count))))
    if len(names) != count or len(set(names)) != count:
        raise InputError(f"{count} actions need {count} different names, not {', '.join(names[:8])}")
    return table, names


def choose_costs(p: Predictions, costs: Any, actions: Sequence[str] | None) -> LeastCost:
    """The rule, with its cost on these items beside that of today's rules."""
    table, names = cost_table(costs, actions, p)
    rule = LeastCost(table, names)
    return replace(rule, record=FitRecord(certificate=compared(rule, p)))


def compared(rule: LeastCost, p: Predictions) -> dict[str, Any]:
    """The mean cost of the rule, of today's rules and of what the rule saves per item, each with its interval."""
    d = rule.decide(p)
    assert d.action is not None
    labels = p.labels.cpu()
    cost = rule.costs[labels, d.action]
    best = rule.costs.argmin(1)  # the action for each class if that class is certain
    plain = rule.costs[labels, best[d.predicted]]
    found = {"cost": cost, "argmax": plain, "saved": plain - cost}
    if rule.abstain >= 0:
        found["threshold"] = _thresholded(plain, rule.costs[labels, rule.abstain], top_of(p).confidence.cpu())
    out: dict[str, Any] = {name: _interval(mean_of(values, p.group)) for name, values in found.items()}
    return out | {"abstained": float((~d.accepted).double().mean())}


def _thresholded(act: Tensor, abstain: Tensor, confidence: Tensor) -> Tensor:
    """The cost of each item under the threshold that is best for these very items."""
    order = confidence.argsort(descending=True, stable=True)
    accepted = torch.cat([torch.zeros(1, dtype=act.dtype), (act - abstain)[order].cumsum(0)])
    last = torch.ones(len(act) + 1, dtype=torch.bool)
    last[1:-1] = confidence[order][1:] != confidence[order][:-1]  # ties are accepted together
    m = int(accepted.masked_fill(~last, torch.inf).argmin())
    chosen = torch.zeros(len(act), dtype=torch.bool)
    chosen[order[:m]] = True
    return torch.where(chosen, act, abstain)


def _interval(e: Estimate) -> dict[str, Any]:
    return {"value": e.value, "low": e.low, "high": e.high}
