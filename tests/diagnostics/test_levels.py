"""Calibration by level against loops and scikit-learn-free arithmetic; variance over runs as AR §3.1 writes it."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import Tensor

from calibrant.diagnostics import calibration_by_level, variance_over_runs
from calibrant.diagnostics.intervals import student
from calibrant.errors import InputError, UnknownNameError
from calibrant.functional import predictions
from calibrant.metrics.evaluate import evaluate
from calibrant.report.plots import epsilon_path, level_accuracy, level_error
from calibrant.report.plots.svg import to_svg
from calibrant.report.robustness import HEAD, lead, level_rows, levels_panel
from calibrant.types import Predictions


def run(seed: int, n: int = 120) -> Predictions:
    labels = torch.randint(4, (n,), generator=torch.Generator().manual_seed(99))
    noise = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return predictions(2 * noise + 2 * torch.nn.functional.one_hot(labels, 4), labels)


LEVEL = torch.arange(120) % 3


def probabilities(p: Predictions) -> list[list[float]]:
    assert p.logits is not None
    out = []
    for row in p.logits.double().tolist():
        powers = [math.exp(z) for z in row]
        out.append([v / sum(powers) for v in powers])
    return out


def test_one_run_is_evaluate_on_each_level() -> None:
    p = run(0)
    found = calibration_by_level(p, LEVEL)
    for r, row in enumerate(found.rows):
        items = [i for i in range(120) if LEVEL[i] == r]
        probs = [probabilities(p)[i] for i in items]
        accuracy = sum(q.index(max(q)) == int(p.labels[i]) for q, i in zip(probs, items, strict=True)) / len(items)
        assert row.n == 40 and row.variance is None
        assert row.accuracy.value == pytest.approx(accuracy)
        assert row.confidence.value == pytest.approx(sum(map(max, probs)) / len(items))
        whole = evaluate(p.take(torch.tensor(items)), metrics=["ece", "accuracy"])
        assert row.ece == whole["ece"] and row.accuracy == whole["accuracy"], "intervals too"
        assert row.confidence.low is not None and row.confidence.low < (row.confidence.value or 0)


def test_levels_and_distances_may_be_arrays_or_lists() -> None:
    p, distance = run(0), torch.rand(120, generator=torch.Generator().manual_seed(1))
    found = calibration_by_level(p, LEVEL, distance=distance)
    assert calibration_by_level(p, LEVEL.numpy(), distance=distance.numpy()) == found
    assert calibration_by_level(p, LEVEL.tolist(), distance=distance.tolist()) == found
    for wrong, says in ((distance[1:], "119 distances for 120 items"), (["far"] * 120, "distance holds")):
        with pytest.raises(InputError, match=says):
            calibration_by_level(p, LEVEL, distance=wrong)


def test_intervals_of_shares_end_at_0_and_1() -> None:
    surest, least, gap = student([1, 1, 0.5], "t"), student([0, 0, 0.5], "t"), student([0, 0, 0.5], "t", (-1.0, 1.0))
    assert surest.high == 1 and least.low == 0 and gap.low is not None and gap.low < 0


def test_the_table_warns_of_small_levels() -> None:
    small, large = (calibration_by_level(run(0).take(torch.arange(n)), LEVEL[:n]).notes() for n in (20, 120))
    assert "A level has 6 items: its ECE is mostly chance." in small and not any("chance" in note for note in large)


@pytest.mark.parametrize("of", ["true", "predicted", "confidence", "classes"])
def test_variance_is_the_papers_sum(of: str) -> None:
    """σ² = 1/(M−1) Σ_m 1/N Σ_i (p̂_{m,i} − p̄_i)², of the class that the setting names."""
    runs = [run(seed) for seed in range(5)]
    probs = [probabilities(p) for p in runs]
    labels = runs[0].labels.tolist()
    mean = [[sum(q[i][k] for q in probs) / 5 for k in range(4)] for i in range(120)]

    def chosen(m: int, i: int) -> list[float]:
        if of == "true":
            return [probs[m][i][labels[i]]]
        if of == "predicted":
            return [probs[m][i][mean[i].index(max(mean[i]))]]
        return [max(probs[m][i])] if of == "confidence" else probs[m][i]

    for r, row in enumerate(calibration_by_level(runs, LEVEL, of=of).rows):  # type: ignore[arg-type]
        items = [i for i in range(120) if LEVEL[i] == r]
        total = 0.0
        for i in items:
            each = [chosen(m, i) for m in range(5)]
            for column in zip(*each, strict=True):
                centre = sum(column) / 5
                total += sum((v - centre) ** 2 for v in column) / (5 - 1)
        assert row.variance is not None
        assert row.variance.value == pytest.approx(total / len(items), rel=1e-9)


def test_several_runs_are_means_with_students_interval() -> None:
    runs = [run(seed) for seed in range(4)]
    each = [calibration_by_level(p, LEVEL, intervals=False).rows[1].ece.value or 0.0 for p in runs]
    found = calibration_by_level(runs, LEVEL).rows[1].ece
    mean = sum(each) / 4
    spread = math.sqrt(sum((v - mean) ** 2 for v in each) / 3)
    assert found.value == pytest.approx(mean)
    assert found.high == pytest.approx(mean + 3.182446 * spread / 2, rel=1e-6)  # t table, 3 degrees, 97.5%
    assert found.method == "Student's t over 4 runs"
    assert student([0.25], "alone").low is None


def test_members_of_a_run_are_pooled_before_runs_are_compared() -> None:
    a, b = run(0), run(1)
    assert a.logits is not None and b.logits is not None
    doubled = predictions(torch.stack([a.logits, a.logits]), a.labels)
    one = calibration_by_level([a, b], LEVEL).rows[0].variance
    two = calibration_by_level([doubled, b], LEVEL).rows[0].variance
    assert one is not None and two is not None and one.value == pytest.approx(two.value)


def test_the_table_the_figures_and_the_section_show_the_same_numbers() -> None:
    runs = [run(seed) for seed in range(3)]
    distance = LEVEL.double() + torch.rand(120, generator=torch.Generator().manual_seed(0))
    found = calibration_by_level(runs, LEVEL, distance=distance, name="mine")
    rows = level_rows(found)
    assert len(rows) == 3 and all(len(row) == len(HEAD) for row in rows)
    for row, text in zip(found.rows, rows, strict=True):
        assert text[0] == str(row.level + 1) and text[1] == "40"
        assert text[2] == f"{statistics.median(distance[row.level == LEVEL].tolist()):.3f}"
        assert text[5].startswith(f"{100 * (row.ece.value or 0):.2f}%")
    assert lead(found).startswith("mine: on the inputs that are easiest to attack it is ")
    panel = levels_panel([found, found], ruler="ddn", attacked="it", targets={"alpha": 0.1, "epsilon": [[0.0], [0.2]]})
    assert len(panel.tables) == 2 and len(panel.figures) == 2 + 1 + 1 + 1
    assert any("DDN" in note for note in panel.notes) and any("true class" in note for note in panel.notes)
    line = level_error([found]).lines[0].get_ydata()
    assert list(line) == pytest.approx([row.ece.value for row in found.rows])
    assert [len(line.get_ydata()) for line in level_accuracy(found).lines] == [3, 3]  # type: ignore[arg-type]
    paths = epsilon_path([[0.0] * 30, [0.1] * 30])
    named = [text.get_text() for text in paths.get_legend().get_texts()]  # type: ignore[union-attr]
    assert len(paths.lines) == 30 and (named[0], named[1], named[-1]) == ("1 (least robust)", "4", "30 (most robust)")
    assert len({str(line.get_color()) for line in paths.lines}) == 30  # no two levels look alike
    assert found.to_dict()["levels"][2]["n"] == 40


def other_items() -> list[Predictions]:
    return [run(0), predictions(torch.zeros(120, 4), torch.zeros(120, dtype=torch.long))]


@pytest.mark.parametrize(
    ("runs", "level", "says"),
    [
        ([run(0)], torch.zeros(7), "7 levels for 120 predictions"),
        ([run(0)], LEVEL - 1, "found -1"),
        ([run(0)], LEVEL * 2, "no item has level 1"),
        (other_items(), LEVEL, "about other items"),
        ([], LEVEL, "no predictions"),
        ([run(0)], LEVEL / 2, r"levels must be whole numbers; calibrant.levels\(distance, R\)"),
        ([torch.zeros(120, 4)], LEVEL, r"run 0 is a Tensor; pass calibrant.predictions\(logits, labels\)"),
    ],
)
def test_bad_input(runs: list[Predictions], level: Tensor, says: str) -> None:
    with pytest.raises(InputError, match=says):
        calibration_by_level(runs, level)


def test_a_variance_needs_runs_and_a_known_probability() -> None:
    with pytest.raises(InputError, match="two or more runs"):
        variance_over_runs(torch.zeros(1, 3, 4), torch.zeros(3, dtype=torch.long))
    with pytest.raises(UnknownNameError, match="did you mean 'true'"):
        variance_over_runs(torch.zeros(2, 3, 4), torch.zeros(3, dtype=torch.long), of="truth")  # type: ignore[arg-type]


def test_names_are_drawn_literally(recwarn: pytest.WarningsRecorder) -> None:
    """A dollar does not begin a formula, and an underscore does not hide a name from the legend."""
    named = [calibration_by_level([run(0), run(1)], LEVEL, name=name) for name in ("a$^$", "_hidden")]
    ax = level_error(named, "variance")
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a$^$", " _hidden"]  # type: ignore[union-attr]
    assert "a$^$" in to_svg(ax, "levels")
    with pytest.raises(InputError, match="a variance needs several runs"):
        level_error([calibration_by_level(run(0), LEVEL, name="alone")], "variance")
    assert not recwarn.list
