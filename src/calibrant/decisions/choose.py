"""`calibrant.decide`: choose a rule on held-out predictions that keeps a promise on new items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from calibrant.decisions.costs import choose_costs
from calibrant.decisions.quantile import choose_sets
from calibrant.decisions.rule import Rule, probability
from calibrant.decisions.threshold_search import ThresholdSearch
from calibrant.errors import InputError, SplitError
from calibrant.files.data_frame import given as given_predictions
from calibrant.functional.scores import reduce
from calibrant.metrics.evaluate import refuse_reuse
from calibrant.posthoc.calibrator import described, refuse_test
from calibrant.posthoc.map import FittedMap
from calibrant.types import Predictions, Split

GUARANTEE = 0.95


def decide(
    predictions: Any,
    labels: Any = None,
    *,
    accuracy: float | None = None,
    accept: float | None = None,
    threshold: float | None = None,
    risk: float | None = None,
    set_coverage: float | None = None,
    costs: Any = None,
    guarantee: float | None = None,
    map: FittedMap | None = None,
    by: str | None = None,
    allow_reuse: bool = False,
    loss: Any = None,
    method: str | None = None,
    randomised: bool = False,
    penalty: float | None = None,
    k_reg: int | None = None,
    actions: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    labels_key: str | None = None,
    class_axis: int = -1,
    ignore_index: int | None = None,
) -> Rule:
    """Choose the rule for one of these goals:

    * `accuracy`: accept as many answers as possible, of which at least this share is right (`threshold.py`);
    * `accept`: accept this share of the answers, the surest ones;
    * `threshold`: accept at this confidence or more; it must have been chosen without these items;
    * `risk`: accept as many answers as possible, whose mean `loss` is at most this. `loss` is a table [K, K] (label,
      prediction) or one loss per item in 0…1; without it a wrong answer costs 1;
    * `set_coverage`: sets that contain the truth this often, by `method` lac (default), aps, raps (`penalty`, `k_reg`)
      or topk, with conservative or `randomised` ties (`conformal.py`);
    * `costs`: a table [K, A] with the cost of each action for each truth, and the names of the `actions` (`costs.py`).

    `predictions` are `Predictions`, logits with their `labels`, or a data frame whose column `labels_key` holds the
    labels. Neither the model nor `map` may have been fitted on these items. Images of labels need `class_axis` and
    `ignore_index`. `by="class"` or `"group"` keeps the promise in each class or group. If items come in groups (pixels
    of images) and the rule is not by group, the promise is about the average over new groups (`grouped.py`). The
    promise of a threshold holds with probability `guarantee` (0.95). That of sets is on average over calibration sets,
    unless a `guarantee` is given.
    """
    axes: dict[str, Any] = {"class_axis": class_axis, "ignore_index": ignore_index}
    p = given_predictions(predictions, labels, labels_key=labels_key, classes=classes, **axes)
    goals = {"accuracy": accuracy, "accept": accept, "threshold": threshold, "risk": risk}
    goals |= {"set_coverage": set_coverage, "costs": costs}
    given = {"loss": loss, "method": method, "randomised": randomised or None, "penalty": penalty, "k_reg": k_reg}
    given |= {"actions": actions, "guarantee": guarantee, "by": by}
    goal = one_goal(goals, given)
    given["guarantee"] = None if guarantee is None else probability("guarantee", guarantee)
    mapped, reused = after_map(p, map, allow_reuse)
    rule = chosen(mapped, goal, goals[goal], {name: value for name, value in given.items() if value is not None})
    settings = {goal: None if goal == "costs" else goals[goal]}
    record = replace(rule.record, calibrator="decide", settings=settings, reuse=reused, **described(p))
    return replace(rule, map=map, record=record)


def chosen(p: Predictions, goal: str, value: Any, given: Mapping[str, Any]) -> Rule:
    """Choose the rule from predictions after the map. The goal and its settings are checked already."""
    if goal == "set_coverage":
        return choose_sets(p, value, **given)
    if goal == "costs":
        return choose_costs(p, value, given.get("actions"))
    task = ThresholdSearch(p, reduce(p, classwise=False), 1 - given.get("guarantee", GUARANTEE), given.get("by"))
    if goal == "accept":
        return task.surest(value)
    if goal == "threshold":
        return task.given(float(value))
    return task.keeping(1 - value if goal == "accuracy" else value, given.get("loss"))


def one_goal(goals: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return the name of the goal that was given, and check its value and the settings beside it."""
    said = [name for name, value in goals.items() if value is not None]
    if len(said) != 1:
        raise InputError(f"give one of {', '.join(goals)}{', not ' + ' and '.join(said) if said else ''}")
    goal, value = said[0], goals[said[0]]
    for name, setting in given.items():
        if setting is not None and name not in SETTINGS[goal]:
            raise InputError(f"{name} does not belong to {goal}, which takes {', '.join(SETTINGS[goal])}")
    if goal not in ("threshold", "risk", "costs"):
        probability(goal, value)
    if goal == "threshold" and not (isinstance(value, (int, float)) and 0 <= value <= 1):
        raise InputError(f"threshold={value!r} must be a confidence between 0 and 1")
    return goal


def after_map(p: Predictions, map: FittedMap | None, allow_reuse: bool) -> tuple[Predictions, bool]:
    """Return the predictions after the map, and whether forbidden items were used because of `allow_reuse`."""
    refuse_test(p, allow_reuse)
    mapped = p if map is None else map.predictions(p)
    reused = refuse_reuse(mapped, allow_reuse=True)
    if reused and not allow_reuse:
        raise SplitError(
            f"{p.source or 'these predictions'}: the map was fitted on these very items, so nothing can be promised "
            "from them; choose the rule on other items, or pass allow_reuse=True (--allow-reuse)"
        )
    return mapped, reused or p.split is Split.TEST


SETTINGS = {
    "accuracy": ("guarantee", "by"),
    "accept": ("guarantee", "by"),
    "threshold": ("guarantee",),
    "risk": ("guarantee", "by", "loss"),
    "set_coverage": ("guarantee", "by", "method", "randomised", "penalty", "k_reg"),
    "costs": ("actions",),
}
"""Goal → the settings that may be given with it."""
