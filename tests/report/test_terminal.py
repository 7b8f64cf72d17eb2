"""Terminal tables: every number and every reason arrives as text; what users wrote is no markup."""

from __future__ import annotations

import pytest
from rich.console import Console, RenderableType

from calibrant import predictions
from calibrant.display import short_names
from calibrant.metrics import METRICS
from calibrant.metrics.compare import Comparison, Difference
from calibrant.metrics.evaluate import evaluate
from calibrant.report import numbers, terminal
from calibrant.report.explain import MEANING
from calibrant.report.panels import Table


def shown(renderable: RenderableType) -> str:
    console = Console(width=160, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_every_metric_is_explained() -> None:
    assert set(MEANING) == set(METRICS), "a metric's sentence for laymen belongs into report/explain.py::MEANING"


def test_audit_has_every_metric_and_its_reason() -> None:
    report = evaluate(predictions(predicted=[0, 1, 1], confidence=[0.9, 0.8, 0.7], labels=[0, 1, 1]), intervals=False)
    text = shown(terminal.audit(report, list(report)))
    for name in report:
        assert name in text
    assert "a top-1 file has no probability of the label" in text
    assert "100.00%" in text  # accuracy
    assert text.startswith("says 80%, is right 100%")


def test_side_by_side_has_a_column_per_file() -> None:
    from dataclasses import replace

    report = evaluate([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1], intervals=False)
    text = shown(terminal.side_by_side([replace(report, file="[red]a.npz"), replace(report, file="b.npz")], ["ece"]))
    assert "[red]a.npz" in text
    assert "b.npz" in text


def test_comparison_in_words() -> None:
    rows = (
        Difference("ece", 0.03, 0.018, -0.012, -0.02, -0.004, 0.0003, 0.0003, verdict="better"),
        Difference("nll", None, None, verdict="within noise"),
    )
    text = shown(terminal.compare_table(Comparison("a", "b", 100, rows)))
    assert "−1.20 pp" in text
    assert "−2.00 … −0.40 pp" in text
    assert "< 0.001" in text
    assert "within noise" in text


def test_a_column_named_after_a_metric_has_its_unit() -> None:
    """Percent for shares, plain numbers for NLL and Brier, in every table."""
    ece = {"value": 0.0123, "low": 0.01, "high": 0.02}
    record = {"method": "x", "nll": 0.25, "ece": ece, "ece after": 0.5, "room_ece": 0.004, "brier": 0.125, "auroc": 0.9}
    records = [
        record | {"variance_of_confidence": 0.0625, "gap": -0.01, "items": 3.0},
        {"method": "isotonic", "nll": None, "why": ["a", "b"], "ok": True},
    ]
    text = shown(terminal.text_table(Table.of("", records)))
    shares = ("1.23% [1.00, 2.00]", "50.00%", "0.40%", "90.00%", "−1.00%")
    for part in (*shares, "0.2500", "0.1250", "0.0625", "a, b", "yes"):
        assert part in text
    assert "3.0" not in text


def test_negative_percentages_have_a_minus_sign() -> None:
    assert numbers.percent(-0.0123) == "−1.2%"


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["/data/x/test.npz"], ["test.npz"]),
        (["run/a/test.npz", "run/b/test.npz"], ["a/test.npz", "b/test.npz"]),
        (["x.npz", "x.npz"], ["x.npz", "x.npz (2)"]),
        (["parts/"], ["parts"]),
        (["a\\b.npz"], ["b.npz"]),
        (["A", "B"], ["A", "B"]),
        (["/"], ["/"]),
        (["nets:plain@w/a.npz", "nets:smooth@w/a.npz"], ["nets:plain", "nets:smooth"]),
        (["nets:plain@w/a.npz", "nets:plain@w/b.npz"], ["a.npz", "b.npz"]),
        ([], []),
    ],
)
def test_short_names_stay_distinct(names: list[str], short: list[str]) -> None:
    assert short_names(names) == short
