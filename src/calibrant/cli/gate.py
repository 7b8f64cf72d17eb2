"""Gates for continuous integration: `--fail-if "ece.high > 0.05"`.

    GATE := METRIC[.value | .low | .high]  (< | <= | > | >= | == | !=)  NUMBER

A number that does not exist cannot meet a gate: null fails too, with the reason.
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

    def judge(self, report: Report) -> tuple[bool, str]:
        """Whether the report meets the gate, and the sentence that says so."""
        estimate: Estimate = report[self.metric]
        found = getattr(estimate, self.field)
        passed = found is not None and not _COMPARE[self.compare](found, self.number)
        name = f"{self.metric}.{self.field}"
        if found is None:
            value = f"{name} does not exist ({estimate.reason or 'no interval was computed'})"
        else:
            value = f"{name} is {found:.6g}"
        where = f" in {report.file}" if report.file else ""
        return passed, f"gate '{self.text}' {'passes' if passed else 'fails'}{where}: {value}"


def parse(text: str, known: Collection[str], computed: Collection[str]) -> Gate:
    """The gate that `text` describes. `known` are all metrics, `computed` those of this run."""
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
    """The gates that are met, in words; raises `GateNotMet` with every failure in one line."""
    judged = [gate.judge(report) for gate in gates for report in reports]
    if failures := [sentence for passed, sentence in judged if not passed]:
        raise GateNotMet("; ".join(failures))
    return "; ".join(sentence for _, sentence in judged)
