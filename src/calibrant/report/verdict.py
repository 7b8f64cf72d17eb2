"""The verdict in one sentence, for someone who has never heard of ECE.

    overconfident: says 97%, is right 91%

The direction is the sign of the gap (mean confidence − accuracy), and is claimed only if the gap's interval excludes
zero. A gap within noise may still hide errors that cancel (too sure here, too unsure there): the test of calibration
decides between `uneven` and `calibrated`. The words answer both "is it noise?" and "is it large?": a gap of half a
point whose interval excludes zero is *slightly* overconfident.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from calibrant.display import Rows, headline
from calibrant.metrics.intervals import caveats_line
from calibrant.report.numbers import brief, items, p_value, percent, percent_pair
from calibrant.types import Report

Kind = Literal["over", "under", "uneven", "calibrated", "unknown"]

ALPHA = 0.05
SLIGHT, STRONG = 0.01, 0.10
"""A gap below the first is called slight, a gap of the second or more strong."""

QUALITY = ((0.95, "very well"), (0.85, "well"), (0.7, "moderately"), (0.0, "poorly"))
"""The least AUROC for each word about the ranking."""


@dataclass(frozen=True)
class Verdict:
    """`sentence` is the headline, `reason` says how certain it is, `ranking` says how well confidence ranks errors."""

    kind: Kind
    sentence: str
    reason: str
    ranking: str


def verdict(report: Report) -> str:
    """Return the headline alone."""
    return judge(report).sentence


def shown(report: Report) -> tuple[str, Rows]:
    """Return what `repr(report)` shows: the headline, and six numbers with their intervals."""
    of = f"{items(report.n)}" + ("" if report.k is None else f", {report.k:,} classes")
    rows = [(name, brief(name, report[name])) for name in headline(report)]
    if (caveat := caveats_line(report, headline(report))) is not None:
        rows.append(("note", caveat))
    if report.by is not None:
        rows.append((f"by {report.by.column}", report.by._shown()[0]))
    return f"{verdict(report)} ({of})", rows


def judge(report: Report) -> Verdict:
    gap, accuracy = report.metrics.get("gap"), report.metrics.get("accuracy")
    ranking = _ranking(report)
    if gap is None or accuracy is None or gap.value is None or accuracy.value is None:
        missing = " and ".join(
            name for name, e in (("accuracy", accuracy), ("gap", gap)) if e is None or e.value is None
        )
        return Verdict(
            "unknown", f"not judged: {missing} {'were' if ' ' in missing else 'was'} not computed", "", ranking
        )
    if report.conventions.get("about") == "positive class":  # here confidence is not about accuracy
        side = "too high" if gap.value > 0 else "too low"
        says = f"its probabilities of the positive class are {percent(abs(gap.value))} {side} on average"
    else:
        first, second = percent_pair(accuracy.value + gap.value, accuracy.value)
        says = f"says {first}, is right {second}"
    p = test_p(report)
    if gap.low is None or gap.high is None:
        why = gap.reason or "no intervals were asked for"
        return Verdict("unknown", f"{says}; whether that is more than noise is not known", f"Why not: {why}.", ranking)
    if gap.low > 0 or gap.high < 0:
        kind: Kind = "over" if gap.value > 0 else "under"
        size = "slightly " if abs(gap.value) < SLIGHT else "strongly " if abs(gap.value) >= STRONG else ""
        reason = f"More than noise: {_span(gap.low, gap.high)} (95% interval over {items(report.n)})."
        return Verdict(kind, f"{size}{kind}confident: {says}", reason, ranking)
    if p is not None and p < ALPHA:
        sentence = f"right on average, wrong in places: {says}, but too sure at some levels and too unsure at others"
        reason = f"Calibration is rejected ({p_value(p)}); the average hides it because the errors cancel."
        return Verdict("uneven", sentence, reason, ranking)
    reason = f"{_span(gap.low, gap.high)} (95% interval over {items(report.n)}), which includes zero"
    reason += f"; the test of calibration finds nothing either ({p_value(p)})." if p is not None else "."
    return Verdict("calibrated", f"no miscalibration found: {says}", f"Within noise: {reason}", ranking)


def test_p(report: Report) -> float | None:
    """Return the p-value of the calibration test, if the report has one."""
    test = report.extras.get("calibration_test")
    if not isinstance(test, Mapping):
        return None
    p: Any = test.get("p", test.get("p_value"))
    return None if p is None else float(p)


def _span(low: float, high: float) -> str:
    return f"the gap is {100 * low:+.1f} to {100 * high:+.1f} points".replace("-", "\N{MINUS SIGN}")


def _ranking(report: Report) -> str:
    """Say what the AUROC means for setting a threshold."""
    auroc = report.metrics.get("auroc")
    if auroc is None:
        return ""
    if auroc.value is None:
        return f"Whether confidence ranks errors below correct answers cannot be measured: {auroc.reason}."
    low = auroc.low if auroc.low is not None else auroc.value
    high = auroc.high if auroc.high is not None else auroc.value
    share = percent(auroc.value, 0)
    if low <= 0.5 <= high:
        return f"Its confidence does not tell errors from correct answers ({share} of pairs in order; 50% is chance)."
    if auroc.value < 0.5:
        return (
            f"Its confidence is upside down: it is surer of its errors (only {share} of pairs are ordered correctly)."
        )
    quality = next(word for least, word in QUALITY if auroc.value >= least)
    pairs = f"a correct answer is the surer one in {share} of pairs"
    unsure = f" ({auroc.reason})" if auroc.reason else ""
    return f"Its confidence separates errors from correct answers {quality}: {pairs}{unsure}."
