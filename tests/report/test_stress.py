"""The heat map, the panels and `calibrant.stress` in three lines."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

import calibrant
from calibrant.data import load
from calibrant.diagnostics.stress.subject import Subject
from calibrant.errors import InputError
from calibrant.report.numbers import percent
from calibrant.report.panels import drawn
from calibrant.report.plots.shift import heatmap
from calibrant.report.stress_report import StressReport


def model() -> nn.Module:
    """Nearest class mean of digits, as a linear layer: no training."""
    train = load("digits")["train"]
    x = train.x.flatten(1).float() / 255
    means = torch.stack([x[train.y == c].mean(0) for c in range(10)])
    linear = nn.Linear(64, 10)
    with torch.no_grad():
        linear.weight.copy_(8 * means)
        linear.bias.copy_(-4 * means.square().sum(1))
    return nn.Sequential(nn.Flatten(), linear)


@pytest.fixture(scope="module")
def report() -> StressReport:
    data = load("digits")
    test, held = data["test"], data["calibration"]
    images = test.x.float() / 255
    return calibrant.stress(
        model(), images, test.y, suite="corruptions,ood,frequency", types=["contrast", "shot_noise"], limit=120,
        calibration=(held.x, held.y), calibrators=["temperature"], outside_sets={"ones": torch.ones(30, 1, 8, 8)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def stressed_once() -> StressReport:
    test = load("digits")["test"]
    suite = "corruptions,perturbations,ood,frequency"
    return calibrant.stress(model(), test.x, test.y, suite=suite, types=["contrast"], severities=[5], limit=40)


def test_three_lines_of_python(report: StressReport) -> None:
    worst = report.worst()
    assert worst is not None and worst.type == "contrast"
    assert "Contrast" in report.verdict and "severity" in report.table()
    assert repr(report).startswith(report.verdict) and "<table>" in report._repr_html_()
    values = report.values("accuracy")
    assert values["contrast", 5] < values["", 0]  # type: ignore[operator]
    assert json.loads(report.to_json())["corruptions"]["n"] == 120
    assert report.outcome.ood["ones"].outside == 30
    with pytest.raises(KeyError, match="did you mean 'ece'"):
        report.plot("ecee")


def test_cells_equal_corruptions_made_by_hand(report: StressReport) -> None:
    from calibrant.shifts import corrupt

    test = load("digits")["test"]
    spread = torch.arange(120) * test.n // 120
    x = corrupt(test.x[spread].float() / 255, "shot_noise", 3, 0, index=spread)
    with torch.no_grad():
        right = (model()(x).argmax(1) == test.y[spread]).double().mean()
    assert report.values("accuracy")["shot_noise", 3] == pytest.approx(float(right))


def test_every_tile_says_its_number() -> None:
    values = {("", 0): 0.91, ("fog", 1): 0.5, ("fog", 2): None, ("snow", 1): 0.25, ("snow", 2): 0.75}
    ax = heatmap(values, title="accuracy")
    assert sorted(t.get_text() for t in ax.texts) == sorted(["91", "91", "50", "–", "25", "75"])
    said = [t.get_text() for t in ax.texts if t.get_text() != "–"]
    strength = {text: tile.get_alpha() or 0 for text, tile in zip(said, ax.patches, strict=True)}
    assert strength["25"] > strength["50"] > strength["75"] > strength["91"]  # the worse, the stronger
    assert [label.get_text() for label in ax.get_yticklabels()] == ["fog", "snow"]
    low = heatmap(values, title="nll", better="low", percent=False)
    assert "0.91" in [t.get_text() for t in low.texts]


def test_panels_show_what_was_found(report: StressReport) -> None:
    made = {panel.title: panel for panel in report.panels()}
    assert list(made) == [
        "How well does it hold up on corrupted images?",
        "Does a calibrator fitted on clean data survive the shift?",
        "Does it know what it does not know?",
        "Which frequencies does it depend on?",
    ]
    first = made["How well does it hold up on corrupted images?"]
    assert "Contrast breaks this model first" in first.lead and len(first.figures) == 4
    assert [row[0] for row in first.tables[0].rows] == ["clean", "1", "2", "3", "4", "5", "mean"]
    rows = made["Does a calibrator fitted on clean data survive the shift?"].tables[0].rows
    assert [row[0] for row in rows] == ["no map", "temperature"] and len(rows[0]) == 7
    page = json.dumps([str(f["svg"]) for d in drawn(list(made.values())) for f in d["figures"]])
    assert len(re.findall("<svg", page)) == 4 + 2 + 1 + 1


def test_bytes_and_floats_normalisation_and_ensembles(tmp_path: Path) -> None:
    test = load("digits")["test"]
    whole = {"suite": "corruptions", "types": ["brightness"], "severities": [2], "limit": 60, "intervals": False}
    a = calibrant.stress(model(), test.x, test.y, **whole)  # type: ignore[arg-type]
    shifted = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    inner = model()[1]  # type: ignore[index]
    with torch.no_grad():
        shifted[1].weight.copy_(0.5 * inner.weight)  # type: ignore[union-attr, operator]
        shifted[1].bias.copy_(inner.bias + 0.25 * inner.weight.sum(1))  # type: ignore[union-attr, operator]
    b = calibrant.stress(shifted, test.x, test.y, mean=[0.25], std=[0.5], **whole)  # type: ignore[arg-type]
    assert a.values("nll")["brightness", 2] == pytest.approx(b.values("nll")["brightness", 2], rel=1e-4)
    c = calibrant.stress(calibrant.PEP(model(), 0.0, 2), test.x, test.y, out=tmp_path / "out", **whole)  # type: ignore[arg-type]
    assert a.values("nll")["brightness", 2] == pytest.approx(c.values("nll")["brightness", 2], rel=1e-5)
    assert (tmp_path / "out" / "stress.json").is_file()


def test_images_that_do_not_fit_into_memory_together_are_answered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    x = load("digits")["test"].x[:50]
    subject = Subject(calibrant.PEP(model(), 0.1, 4))
    with torch.no_grad():
        expected = calibrant.PEP(model(), 0.1, 4)(x.float() / 255)
    spread = []
    for held in (1 << 30, 2 * 64 * 10, 0):  # all batches at once, three, one
        monkeypatch.setattr("calibrant.diagnostics.stress.subject.HELD", held)
        answer = subject.answer(torch.split(x, 10))
        torch.testing.assert_close(answer.logits, expected, atol=1e-5, rtol=0)
        spread.append(answer.member_entropy)
    torch.testing.assert_close(spread[1], spread[0])
    torch.testing.assert_close(spread[2], spread[0])
    with pytest.raises(InputError, match="returned NaN"):
        Subject(lambda v: v.flatten(1) * torch.nan).answer([x])


@pytest.mark.parametrize(
    ("images", "labels", "word"),
    [
        (np.full((4, 1, 8, 8), 200.0), np.zeros(4, int), "divide by 255"),
        (np.zeros((4, 1, 8, 8), np.uint8), np.zeros(3, int), "3 labels"),
        (np.zeros((4, 1, 8, 8), np.uint8), np.zeros(4), "whole numbers"),
        (np.zeros((4, 1, 8, 8), np.uint8), np.full(4, 12), "12"),
        (np.zeros((4, 1, 4, 4), np.uint8), np.zeros(4, int), "too small"),
    ],
)
def test_bad_input(images: object, labels: object, word: str) -> None:
    def network(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :10]

    with pytest.raises(InputError, match=word):
        calibrant.stress(network, images, labels, types=["fog"], suite="corruptions")


@pytest.mark.parametrize("name", ["limit", "batch"])
def test_counts_must_be_positive(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be 1 or more"):
        calibrant.stress(model(), torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long), **{name: 0})  # type: ignore[arg-type]


def small(**more: object) -> dict[str, object]:
    return {"suite": "corruptions,ood", "types": ["fog"], "severities": [1], "limit": 20, "intervals": False, **more}


def test_a_folder_resumed_with_anything_else_is_refused(tmp_path: Path) -> None:
    """What decides a cell: normalisation, other sets and calibration items, and the code of a model without weights."""
    data = load("digits")
    test, held = data["test"], data["calibration"]
    ones = torch.ones(9, 1, 8, 8)
    begun = {
        "mean": [0.1],
        "std": [0.5],
        "outside_sets": {"mine": ones},
        "natural": {"new": (held.x[:9], held.y[:9])},
        "calibration": (held.x[:90], held.y[:90]),
        "calibrators": ["temperature"],
        "out": tmp_path / "out",
    }
    first = calibrant.stress(model(), test.x, test.y, **small(**begun))  # type: ignore[arg-type]
    again = calibrant.stress(model(), test.x, test.y, **small(**begun))  # type: ignore[arg-type]
    assert again.values("nll") == first.values("nll")
    for other, word in (
        ({"mean": [0.2]}, "mean was"),
        ({"std": None}, "std was"),
        ({"outside_sets": {"mine": 0.5 * ones}}, "outside was"),
        ({"natural": {"new": (held.x[:9], 9 - held.y[:9])}}, "natural was"),
        ({"calibration": (held.x[90:180], held.y[90:180])}, "calibration was"),
    ):
        with pytest.raises(InputError, match=word):
            calibrant.stress(model(), test.x, test.y, **small(**(begun | other)))  # type: ignore[arg-type]
    out = tmp_path / "function"
    calibrant.stress(lambda x: x.flatten(1)[:, :10], test.x, test.y, **small(out=out))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="gives other answers"):
        calibrant.stress(lambda x: x.flatten(1)[:, 20:30], test.x, test.y, **small(out=out))  # type: ignore[arg-type]


def test_own_corruptions_natural_sets_and_a_reference(tmp_path: Path) -> None:
    test = load("digits")["test"]
    x, y = test.x[:30], test.y[:30]
    np.save(tmp_path / "dim.npy", np.concatenate([(x / s).to(torch.uint8)[:, 0].numpy() for s in (2, 4)]))
    np.save(tmp_path / "labels.npy", y.numpy())
    given = {"corruptions": tmp_path, "severities": [1, 2], "suite": "corruptions", "intervals": False}
    np.savez(tmp_path / "again.npz", images=x[:20, 0].numpy(), labels=y[:20].numpy())
    natural = {"new": (x[:20], y[:20]), "file": tmp_path / "again.npz"}
    one = calibrant.stress(model(), x, y, **given, natural=natural, out=tmp_path / "out")  # type: ignore[arg-type]
    with torch.no_grad():
        right = {s: model()((x / s).to(torch.uint8).float() / 255).argmax(1) == y for s in (2, 4)}
    assert one.values()["dim", 1] == pytest.approx(float(right[2].double().mean()))
    assert one.values()["dim", 2] == pytest.approx(float(right[4].double().mean()))
    new, file = (one.outcome.natural[name] for name in ("new", "file"))
    assert new.n == 20 and new["nll"].value == file["nll"].value
    with pytest.raises(InputError, match=r"dim has severities 1,2; pass --severities 1,2"):
        calibrant.stress(model(), x, y, **{**given, "severities": [1, 3]})  # type: ignore[arg-type]
    np.save(tmp_path / "labels.npy", 9 - y.numpy())
    with pytest.raises(InputError, match="corruptions was"):
        calibrant.stress(model(), x, y, **given, natural=natural, out=tmp_path / "out")  # type: ignore[arg-type]
    np.save(tmp_path / "labels.npy", y.numpy())
    half = calibrant.stress(lambda v: 0.5 * model()(v), x, y, **given, reference=tmp_path / "out")  # type: ignore[arg-type]
    assert half.outcome.corruptions is not None and half.outcome.corruptions.normalised["mce"].value == 1


def test_a_model_that_does_not_fit_the_images_is_refused(tmp_path: Path) -> None:
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6)
    wrong = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    with pytest.raises(InputError, match=r"'Sequential' cannot read these images \(1×8×8\): mat1 and mat2"):
        calibrant.stress(wrong, x, y, out=tmp_path / "out")
    few = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    with pytest.raises(InputError, match="labels: labels are 0 … 5, the model's 0 … 3"):
        calibrant.stress(few, x, y, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_severity_is_called_the_only_one(stressed_once: StressReport) -> None:
    text = stressed_once.table()
    assert "severity 5, the only one tried" in text and "breaks this model first" not in text
    assert not any(line.startswith("mean") for line in text.splitlines())
    (made,) = [p for p in stressed_once.panels() if p.title.startswith("How well does it hold")]
    assert "At severity 5, the error is" in made.lead  # one type: there is nothing to average over
    assert [row[0] for row in made.tables[0].rows] == ["clean", "5"]


def test_the_table_has_the_units_of_the_page(stressed_once: StressReport) -> None:
    text = stressed_once.table()
    clean = next(line for line in text.splitlines() if line.startswith("clean"))
    accuracy, nll = (stressed_once.outcome.clean[name].value for name in ("accuracy", "nll"))
    assert accuracy is not None and clean.split()[1:3] == [percent(1 - accuracy), f"{nll:.3f}"]
    row = next(line for line in text.splitlines() if line.startswith("5 "))
    (made,) = [p for p in stressed_once.panels() if p.title.startswith("How well does it hold")]
    same = " ".join(made.tables[0].rows[1]).replace(" [", " ").replace(", ", "…").replace("]", "")
    assert row.split() == same.split()
    assert max(len(clean), len(row)) <= 80


def test_general_notes_are_in_the_first_section(stressed_once: StressReport) -> None:
    o = replace(stressed_once.outcome, corruptions=None, broken=(), notes=("no calibrators: too <few>",))
    made = replace(stressed_once, outcome=o).panels()
    assert [("no calibrators: too <few>" in p.notes) for p in made] == [i == 0 for i in range(len(made))]


def test_accuracy_against_frequency_has_wilsons_interval(stressed_once: StressReport) -> None:
    found = stressed_once.outcome.frequency
    n = stressed_once.outcome.clean.n
    for estimate in found.values():
        ends = binomtest(round(estimate.value * n), n).proportion_ci(method="wilson")  # type: ignore[operator]
        assert (estimate.low, estimate.high) == pytest.approx((ends.low, ends.high))
    assert len(found) == 10


def test_intervals_of_shares_stay_within_zero_and_one(stressed_once: StressReport) -> None:
    o = stressed_once.outcome
    shares = [e for row in o.perturbations.values() for n, e in row.items() if n != "cross_entropy_consistency"]
    shares += [e for report in o.ood.values() for row in report.scores.values() for e in row.values()]
    ends = [end for e in shares for end in (e.low, e.high) if end is not None]
    assert ends and all(0 <= end <= 1 for end in ends)


@pytest.mark.parametrize("given", ["natural", "outside_sets", "calibration"])
def test_sets_of_another_size_are_refused_before_anything_is_written(tmp_path: Path, given: str) -> None:
    images, labels = torch.randint(256, (6, 3, 16, 16), dtype=torch.uint8), torch.arange(6) % 3
    other = images[..., :12, :12]
    sets = {"natural": {"new": (other, labels)}, "outside_sets": {"new": other}, "calibration": (other, labels)}
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 3))
    with pytest.raises(InputError, match=r"images are \(3, 12, 12\), the classifier's are \(3, 16, 16\)"):
        calibrant.stress(model, images, labels, types=["fog"], out=tmp_path / "out", **{given: sets[given]})
    assert not (tmp_path / "out").exists()
