"""A paired comparison in words and as rows of text, from the result of `calibrant.compare` or a dict of its form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.metrics.compare import Comparison
from calibrant.report import numbers

DASH = numbers.DASH


@dataclass(frozen=True)
class Row:
    metric: str
    difference: str
    interval: str
    p: str
    verdict: str


def rows(comparison: Any) -> list[Row]:
    """One row per metric. The comparison has `rows` of metric, difference, low, high, p (p_holm) and verdict."""
    return [_row(r) for r in field(comparison, "rows") or ()]


def names(comparison: Any) -> tuple[str, str]:
    """The names of what is compared, (a, b), if it has names."""
    return str(field(comparison, "a") or "A"), str(field(comparison, "b") or "B")


def sentence(comparison: Comparison, shown: Sequence[str] | None = None) -> str:
    """The verdict in words, over all metrics or those that are shown."""
    groups = {
        word: [row.metric for row in comparison.rows if row.verdict == word and (shown is None or row.metric in shown)]
        for word in ("better", "worse", "within noise")
    }
    parts = [f"{word} in {', '.join(names)}" for word, names in groups.items() if names and word != "within noise"]
    if not parts:
        return f"{comparison.b}: within noise of {comparison.a} in every metric"
    noise = groups["within noise"]
    rest = f"; within noise in {noise[0] if len(noise) == 1 else f'{len(noise)} others'}" if noise else ""
    return f"{comparison.b}: {'; '.join(parts)}{rest} (verdicts by p after Holm's correction)"


def field(record: Any, name: str) -> Any:
    if isinstance(record, Mapping):
        return record.get(name)
    return getattr(record, name, None)


def _row(record: Any) -> Row:
    name = str(field(record, "metric"))
    low, high = field(record, "low"), field(record, "high")
    corrected = field(record, "p_holm")
    p = field(record, "p") if corrected is None else corrected  # the verdict is based on this one
    return Row(
        metric=name,
        difference=signed(name, field(record, "difference")),
        interval=DASH if low is None or high is None else f"{signed(name, low)} … {signed(name, high)}",
        p=numbers.p_value(p).removeprefix("p = ").removeprefix("p "),
        verdict=str(field(record, "verdict") or field(record, "reason") or DASH),
    )


def signed(name: str, number: float | None) -> str:
    """A difference always shows its direction; of shares it is in points (pp)."""
    if number is None:
        return DASH
    text = f"{100 * number:+.2f} pp" if numbers.is_percent(name) else f"{number:+.4f}"
    return text.replace("-", "\N{MINUS SIGN}")
