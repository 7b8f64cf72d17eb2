"""Terminal tables: every number and every reason arrives as text; what users wrote is no markup."""

from __future__ import annotations

from rich.console import Console, RenderableType

from calibrant import predictions
from calibrant.metrics import METRICS
from calibrant.metrics.compare import Comparison, Difference
from calibrant.metrics.evaluate import evaluate
from calibrant.report import numbers, terminal
from calibrant.report.explain import MEANING
from calibrant.report.panels import Table
from calibrant.report.steps import next_steps


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


def test_records_of_any_columns() -> None:
    records = [
        {"method": "temperature", "nll": 0.25, "ok": True},
        {"method": "isotonic", "nll": None, "why": ["a", "b"]},
    ]
    text = shown(terminal.text_table(Table.of("", records, chosen=0)))
    for part in ("temperature", "0.2500", "yes", "isotonic", "a, b"):
        assert part in text


def test_steps_are_commands_of_the_design() -> None:
    report = evaluate([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1], intervals=False)
    assert any(step.command and step.command.startswith("calibrant audit") for step in next_steps(report))


def test_a_column_named_after_a_metric_has_its_unit() -> None:
    """Percent for shares, plain numbers for NLL and Brier, in every table."""
    ece = {"value": 0.0123, "low": 0.01, "high": 0.02}
    record = {"method": "x", "nll": 0.25, "ece": ece, "ece after": 0.5, "room_ece": 0.004, "brier": 0.125, "auroc": 0.9}
    records = [record | {"variance_of_confidence": 0.0625, "gap": -0.01, "items": 3.0}]
    text = shown(terminal.text_table(Table.of("", records)))
    for part in ("0.2500", "1.23% [1.00, 2.00]", "50.00%", "0.40%", "0.1250", "90.00%", "0.0625", "−1.00%"):
        assert part in text
    assert "3.0" not in text


def test_percent_of_less_than_nothing_has_a_minus() -> None:
    assert numbers.percent(-0.0123) == "−1.2%"
