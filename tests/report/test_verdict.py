"""The sentence says what the intervals allow, and no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from calibrant.report.numbers import percent, percent_pair, value
from calibrant.report.verdict import judge, verdict
from calibrant.types import Report


def test_the_sentence_of_the_readme(report: Callable[..., Report]) -> None:
    assert verdict(report(0.91, (0.06, 0.05, 0.07))) == "overconfident: says 97%, is right 91%"


@pytest.mark.parametrize(
    ("gap", "p", "kind", "starts"),
    [
        ((0.06, 0.05, 0.07), None, "over", "overconfident"),
        ((-0.06, -0.07, -0.05), None, "under", "underconfident"),
        ((0.004, 0.001, 0.007), None, "over", "slightly overconfident"),
        ((0.25, 0.2, 0.3), 0.0, "over", "strongly overconfident"),
        ((0.004, -0.001, 0.009), 0.4, "calibrated", "no miscalibration found"),
        ((0.004, -0.001, 0.009), None, "calibrated", "no miscalibration found"),
        ((0.004, -0.001, 0.009), 0.001, "uneven", "right on average, wrong in places"),
        ((0.06, None, None), None, "unknown", "says 97%, is right 91%"),
    ],
)
def test_direction_needs_an_interval_without_zero(
    report: Callable[..., Report],
    gap: tuple[float, float | None, float | None],
    p: float | None,
    kind: str,
    starts: str,
) -> None:
    judged = judge(report(0.91, gap, p))
    assert judged.kind == kind
    assert judged.sentence.startswith(starts)


def test_the_p_value_is_told(report: Callable[..., Report]) -> None:
    assert "p < 0.001" in judge(report(0.9, (0.0, -0.01, 0.01), 1e-5)).reason
    assert "p = 0.40" in judge(report(0.9, (0.0, -0.01, 0.01), 0.4)).reason


def test_ranking_is_a_sentence_of_its_own(report: Callable[..., Report]) -> None:
    assert "very well" in judge(report(0.9, (0.0, -0.01, 0.01), auroc=0.96)).ranking
    assert "does not tell errors" in judge(report(0.9, (0.0, -0.01, 0.01), auroc=0.5)).ranking
    assert "upside down" in judge(report(0.9, (0.0, -0.01, 0.01), auroc=0.4)).ranking
    assert "all predictions are correct" in judge(report(1.0, (0.0, -0.01, 0.01), auroc=None)).ranking


def test_positive_class_is_not_called_right(report: Callable[..., Report]) -> None:
    sentence = verdict(report(0.91, (0.06, 0.05, 0.07), about="positive class"))
    assert "is right" not in sentence
    assert "6.0% too high" in sentence


def test_a_report_without_gap_is_not_judged() -> None:
    assert judge(Report({}, n=1, k=2, conventions={})).kind == "unknown"


def test_percent_never_rounds_to_certainty() -> None:
    assert percent(1.0) == "100.0%"
    assert percent(0.99999) == "99.999%"
    assert percent(1 - 1e-15).startswith(">\N{NO-BREAK SPACE}99.99")
    assert percent(0.0) == "0.0%"
    assert percent(1e-9) == "<\N{NO-BREAK SPACE}0.1%"
    assert percent(None) == "–"


def test_pairs_get_the_digits_that_tell_them_apart() -> None:
    assert percent_pair(0.97, 0.91) == ("97%", "91%")
    assert percent_pair(0.9131, 0.9102) == ("91.3%", "91.0%")
    assert percent_pair(0.5, 0.5) == ("50.00%", "50.00%")


def test_values_have_the_unit_of_their_metric() -> None:
    assert value("ece", 0.0464) == "4.64%"
    assert value("nll", 0.34567) == "0.3457"
    assert value("gap", -0.0464) == "−4.64%"
