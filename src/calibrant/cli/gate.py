"""Gates for continuous integration: `--fail-if "ece.high > 0.05"`.

    GATE := METRIC[.value | .low | .high]  (< | <= | > | >= | == | !=)  NUMBER

A number that does not exist cannot show that the gate is met, so null fails it too, and says so.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from calibrant.errors import GateNotMet, InputError, unknown
from calibrant.types import Estimate, Report

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_GRAMMAR = re.compile(r"\s*(\w+)(?:\.(\w+))?\s*(<=|>=|==|!=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_FIELDS = ("value", "low", "high")


@dataclass(frozen=True)
class Gate:
    """Fails when `metric.field OP number` is true."""

    text: str
    metric: str
    field: str
    compare: str
    number: float

    def failure(self, report: Report) -> str | None:
        """Why the gate is not met by this report; None when it is."""
        estimate: Estimate = report[self.metric]
        found = getattr(estimate, self.field)
        name = f"{self.metric}.{self.field}"
        where = f" in {report.file}" if report.file else ""
        if found is None:
            why = estimate.reason or "no interval was computed"
            return f"gate '{self.text}' fails{where}: {name} does not exist ({why})"
        if _COMPARE[self.compare](found, self.number):
            return f"gate '{self.text}' fails{where}: {name} is {found:.6g}"
        return None

    def passed(self, report: Report) -> str:
        """That the gate is met, with the number that meets it."""
        where = f" in {report.file}" if report.file else ""
        found = getattr(report[self.metric], self.field)
        return f"gate '{self.text}' passes{where}: {self.metric}.{self.field} is {found:.6g}"


def parse(text: str, known: Collection[str], computed: Collection[str]) -> Gate:
    """`known` are all metrics, `computed` those that this run will have."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise InputError(
            f"cannot read the gate {text!r}; write METRIC[.value|.low|.high] OP NUMBER, as in 'ece.high > 0.05'"
        )
    metric, field, compare, number = match[1], match[2] or "value", match[3], float(match[4])
    if metric not in known:
        raise unknown("metric", metric, known)
    if field not in _FIELDS:
        raise InputError(f"gate {text!r}: {field!r} is not a part of an estimate; use {', '.join(_FIELDS)}")
    if metric not in computed:
        raise InputError(f"gate {text!r}: {metric} is not computed in this run; add it to --metrics")
    return Gate(" ".join(text.split()), metric, field, compare, number)


def check(gates: Sequence[Gate], reports: Sequence[Report]) -> str:
    """What was met, in words; `GateNotMet` with every failure in one line."""
    failures = [why for gate in gates for report in reports if (why := gate.failure(report)) is not None]
    if failures:
        raise GateNotMet("; ".join(failures))
    return "; ".join(gate.passed(report) for gate in gates for report in reports)
