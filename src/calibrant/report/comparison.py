"""A paired comparison in words and as rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.metrics.compare import Comparison, Difference
from calibrant.report import numbers

PP = " pp"


@dataclass(frozen=True)
class Row:
    metric: str
    difference: str
    interval: str
    p: str
    verdict: str


def rows(comparison: Comparison) -> list[Row]:
    """Return one row per metric."""
    return [_row(r) for r in comparison.rows]


def sentence(comparison: Comparison, shown: Sequence[str] | None = None) -> str:
    """Say in which metrics the second predictor is better or worse, among all metrics or those in `shown`."""
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


def _row(r: Difference) -> Row:
    return Row(
        r.metric,
        signed(r.metric, r.difference),
        numbers.DASH
        if r.low is None or r.high is None
        else f"{signed(r.metric, r.low).removesuffix(PP)} … {signed(r.metric, r.high)}",
        numbers.p_cell(r.p_holm),  # the verdict is based on this p-value
        r.verdict or r.reason or numbers.DASH,
    )


def signed(name: str, number: float | None) -> str:
    """Return a difference as text with its sign; differences of shares are in points (pp)."""
    if number is None:
        return numbers.DASH
    text = f"{100 * number:+z.2f}{PP}" if numbers.is_percent(name) else f"{number:+z.4f}"
    return text.replace("-", "\N{MINUS SIGN}")
