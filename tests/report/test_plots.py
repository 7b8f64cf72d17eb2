"""Figures: what is drawn is what was computed; the SVG is the same every time; no pyplot, no global state."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import matplotlib
import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from scipy.stats import binomtest, spearmanr

from calibrant.diagnostics.overfitting import Epoch
from calibrant.functional import Scores, reduce
from calibrant.functional.decomposition import event_bins
from calibrant.metrics.evaluate import evaluate
from calibrant.report import plots
from calibrant.report.plots import overfitting_curves, overfitting_scatter, shift
from calibrant.report.plots.shift import heatmap
from calibrant.report.plots.style import new_axes
from calibrant.report.plots.svg import to_svg
from calibrant.types import Estimate, Predictions, Report

RUNS = [[Epoch(e, 1 / e, 0.5 + 0.1 * e * s, 0.01 * e, 0.5 + 0.05 * e * s) for e in range(1, 6)] for s in (1, 2)]


@pytest.fixture
def scores(make: Callable[..., Predictions]) -> Scores:
    return reduce(make(n=1500))


def test_reliability_draws_accuracy_with_its_interval(scores: Scores) -> None:
    ax = plots.reliability(scores)
    (drawn,) = [c for c in ax.containers if isinstance(c, ErrorbarContainer)]
    line, _, (segments,) = drawn.lines
    sums = event_bins(scores)
    for (conf, acc), segment in zip(line.get_xydata(), segments.get_segments(), strict=True):
        b = int(np.ceil(conf * scores.bins)) - 1
        n, hits = int(sums.count[0, b]), int(sums.correct[0, b])
        assert acc == pytest.approx(hits / n)
        expected = binomtest(hits, n).proportion_ci(0.95, "wilson")
        np.testing.assert_allclose(segment[:, 1], (expected.low, expected.high), atol=1e-9)


def test_bin_sums_are_enough_for_a_reliability_diagram(scores: Scores) -> None:
    assert to_svg(plots.reliability(scores), "x") == to_svg(plots.reliability(event_bins(scores)), "x")


def test_curves_end_at_the_whole(scores: Scores) -> None:
    right = float(scores.correct.double().mean())
    for plot, at_end in ((plots.risk_coverage, 1 - right), (plots.accuracy_coverage, right)):
        curve = plot(scores).lines[0].get_xydata()
        assert curve[-1] == pytest.approx((1.0, at_end))
        assert len(curve) <= 240


def test_density_shares_sum_to_one(scores: Scores) -> None:
    ax = plots.confidence_density(scores)
    for patch in ax.patches:
        assert patch.get_data().values.sum() == pytest.approx(1)  # type: ignore[attr-defined]


def test_a_plot_is_drawn_into_given_axes(scores: Scores) -> None:
    ax = Figure().add_subplot()
    assert plots.reliability(scores, ax=ax) is ax
    assert plots.risk_coverage(scores, ax=ax) is ax
    assert plots.confidence_density(scores, ax=ax) is ax
    assert plots.confidence_histogram(scores, ax=ax) is ax
    assert plots.accuracy_coverage(scores, ax=ax, label="mine") is ax


def test_forest_and_before_after(make: Callable[..., Predictions], scores: Scores) -> None:
    reports = {name: evaluate(make(n=300, seed=i), intervals=False) for i, name in enumerate("AB")}
    axes = plots.forest(reports, names=("accuracy", "ece"))
    assert [ax.lines[0].get_xdata()[0] for ax in axes] == [reports["A"][n].value for n in ("accuracy", "ece")]
    mine = np.array([new_axes(), new_axes()])  # as `plt.subplots` returns them
    assert plots.forest(reports, names=("accuracy", "ece"), axes=mine) is mine
    assert plots.before_after(scores, event_bins(scores), axes=mine) is mine
    before, after = plots.before_after(scores, event_bins(scores))
    assert before.get_title() == "before" and after.get_title() == "after"


def test_svg_is_deterministic_small_and_well_formed(scores: Scores) -> None:
    first, again = (to_svg(plots.reliability_figure(scores), "a <b> & 'c'") for _ in range(2))
    assert first == again
    assert len(first) < 25_000
    root = ElementTree.fromstring(first)
    assert root.attrib["aria-label"] == "a <b> & 'c'"
    assert len(root.attrib["data-frame"].split()) == 8
    assert "var(--accent,#2f6fde)" in first
    assert "items, says" in "".join(e.text or "" for e in root.iter("title"))


def test_matplotlib_settings_are_unchanged(scores: Scores) -> None:
    before = dict(matplotlib.rcParams)
    to_svg(plots.risk_coverage(scores), "x")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("spread", [0.001, 0.0123, 0.03, 0.2])
def test_a_small_panel_of_the_forest_has_two_labels_at_most(spread: float) -> None:
    """Three labels such as 4.50% touch each other."""
    metrics = {"ece": Estimate(0.05, 0.05 - spread / 4, 0.05 + spread)}
    (ax,) = plots.forest({"A": Report(metrics, 10, 2, {})}, names=["ece"])
    low, high = ax.get_xlim()
    assert 1 <= sum(low <= t <= high for t in ax.get_xticks()) <= 2


def test_names_are_drawn_as_text(make: Callable[..., Predictions], recwarn: pytest.WarningsRecorder) -> None:
    """People call runs and shifts as they like; matplotlib would set what stands between dollars, or fail on it."""
    name = r"a$\nosuch{$b"
    report = evaluate(make(n=200), intervals=False)
    drawn = [
        plots.forest({name: report, "other": report})[0],
        heatmap({(name, 0): 0.9, (name, 1): 0.5}, title=name),
        shift.severity_curves({name: {0: 0.1, 1: 0.2}}, label="ECE"),
        shift.entropy_histograms({"": np.zeros(3), name: np.ones(3)}, 10),
    ]
    for ax in drawn:
        assert name in to_svg(ax, "names")
    assert not recwarn.list


def test_points_are_the_gap_and_the_effect_of_each_epoch() -> None:
    flat = [e for run in RUNS for e in run]
    (drawn,) = (line for line in overfitting_scatter({"row": flat}).lines if str(line.get_label()).startswith("row"))
    assert list(drawn.get_xdata()) == [e.test_nll - e.train_nll for e in flat]
    assert list(drawn.get_ydata()) == [e.test_nll - e.pep_nll for e in flat]
    rho = spearmanr([e.overfitting for e in flat], [e.effect for e in flat]).statistic
    assert drawn.get_label() == f"row, ρ = {rho:.2f}".replace("-", "−")


def test_curves_have_the_mean_over_seeds() -> None:
    lines = {str(line.get_label()): line for line in overfitting_curves(RUNS).lines}
    assert list(lines["PEP"].get_ydata()) == pytest.approx(
        [(a.pep_nll + b.pep_nll) / 2 for a, b in zip(*RUNS, strict=True)]
    )
