"""Decisions: rules with a guarantee, made from honest confidence. Thresholds, prediction sets, costs.

A rule comes after the map and, like a map, is frozen and saved without pickle. A new kind of rule is one file with a
subclass of `Rule`, and one line in `_TABLE`.
"""

from __future__ import annotations

from calibrant.decisions.attach import attach
from calibrant.decisions.choose import decide
from calibrant.decisions.conformal import PredictionSets
from calibrant.decisions.costs import LeastCost
from calibrant.decisions.judge import Judgement, judge
from calibrant.decisions.rule import Decisions, Rule
from calibrant.decisions.shifted import AdaptiveSets, WeightedSets
from calibrant.decisions.storage import load
from calibrant.decisions.threshold import Threshold
from calibrant.errors import suggest_names

_TABLE: tuple[type[Rule], ...] = (Threshold, PredictionSets, LeastCost)

RULES: dict[str, type[Rule]] = {r.kind: r for r in _TABLE}
"""Kind in a saved header → rule class."""

__all__ = [
    "RULES",
    "AdaptiveSets",
    "Decisions",
    "Judgement",
    "Rule",
    "WeightedSets",
    "attach",
    "decide",
    "judge",
    "load",
]

suggest_names(__name__)
