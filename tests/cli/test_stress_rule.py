"""`calibrant stress --rule`: the promise on every cell, recomputed from the stored logits, and refused rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import calibrant
from calibrant.diagnostics.stress.cells import Cell
from calibrant.errors import SplitError
from calibrant.report.stress_rule import RuleUnderShift
from tests.cli.commands import Refused, call, make

FEW = ("--types", "contrast,fog", "--severities", "1,5", "--limit", 200, "--device", "cpu", "--calibrators", "none")
CELLS = ("clean", "corruption-contrast-1", "corruption-contrast-5", "corruption-fog-1", "corruption-fog-5")


def stored(path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The (probabilities, labels) of a cell."""
    with np.load(path) as held:
        z, y = held["logits"].astype(np.float64), held["labels"]
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True), y


def same(found: dict[str, Any], hits: np.ndarray[Any, Any]) -> None:
    """The share of hits with scipy's exact interval; None without items."""
    if not len(hits):
        assert found["value"] is None
        return
    exact = binomtest(int(hits.sum()), len(hits)).proportion_ci(0.95, "exact")
    got = (found["value"], found["low"], found["high"])
    assert got == pytest.approx((hits.mean(), exact.low, exact.high), abs=1e-6)


def test_a_threshold_and_sets_on_the_same_cells(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choose = ("decide", trained / "calibration.npz", "--json")
    threshold = json.loads(call(capsys, *choose, "--accuracy", 0.9, "-o", tmp_path / "rule")[1])["threshold"][0]
    quantile = json.loads(call(capsys, *choose, "--set-coverage", 0.9, "-o", tmp_path / "sets")[1])["quantile"][0]
    asked = ("stress", trained, "-o", tmp_path / "out", *FEW, "--rule")
    code, out, _ = call(capsys, *asked, tmp_path / "rule", "--html", tmp_path / "page.html", "--json")
    ruled = json.loads(out)["rule"]
    assert code == 0 and tuple(ruled["cells"]) == CELLS
    assert ruled["promised"] == {"accuracy_accepted": pytest.approx(0.9)}
    right = {}
    for key in CELLS:
        p, y = stored(tmp_path / "out" / "cells" / f"{key}.npz")
        accepted, right[key] = p.max(1) >= threshold, p.argmax(1) == y
        right[key] = right[key][accepted]
        same(ruled["cells"][key]["accepted"], accepted)
        same(ruled["cells"][key]["accuracy_accepted"], right[key])
        high = ruled["cells"][key]["accuracy_accepted"]["high"]
        assert ruled["cells"][key]["broken"] == (high is not None and high < 0.9)
    assert ruled["sentence"].startswith(f"On clean data {100 * right['clean'].mean():.1f}% of the accepted are right")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "What becomes of the rule" in page and "contrast at severity 5" in page and ruled["sentence"] in page

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").iterdir()}
    code, out, _ = call(capsys, *asked, tmp_path / "sets")
    assert code == 0 and {path: path.stat().st_mtime_ns for path in before} == before
    ruled = json.loads((tmp_path / "out" / "stress.json").read_text("utf-8"))["rule"]
    for key in CELLS:
        p, y = stored(tmp_path / "out" / "cells" / f"{key}.npz")
        sets = 1 - p <= quantile
        same(ruled["cells"][key]["coverage"], sets[np.arange(len(y)), y])
        assert ruled["cells"][key]["set_size"]["value"] == pytest.approx(sets.sum(1).mean())
    worst = min(CELLS[1:], key=lambda key: ruled["cells"][key]["coverage"]["value"])
    assert ruled["cells"][worst]["broken"] and f"under {worst.split('-')[1]} at severity" in ruled["sentence"]
    assert "sets that hold the truth" in out and ruled["sentence"] in out


def test_a_rule_that_does_not_fit_is_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    other = make(tmp_path / "calibration.npz", 0, "calibration", n=3000)
    assert call(capsys, "decide", other, "--accuracy", 0.7, "-o", tmp_path / "three")[0] == 0
    held = dict(np.load(trained / "calibration.npz"))
    grouped = tmp_path / "grouped.npz"
    np.savez(grouped, **held | {"group": np.arange(len(held["labels"])) % 2})
    assert call(capsys, "decide", grouped, "--accept", 0.5, "--by", "group", "-o", tmp_path / "groups")[0] == 0
    for folder, word in (("three", "chosen for 3 classes"), ("groups", "by group"), ("none", "with a decision rule")):
        refused(["stress", trained, "-o", tmp_path / "out", *FEW, "--rule", tmp_path / folder], word)
        assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def items() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels that are drawn from them."""
    g = torch.Generator().manual_seed(1)
    z = 4 * torch.randn(2000, 3, generator=g)
    return z, torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]


def test_bands_and_sequences_are_judged_too(items: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Every frame is an item, and the accuracy of the accepted is a mean over sequences, recomputed in a plain loop."""
    z, y = items
    rule = calibrant.decide(z[:1000], y[:1000], accuracy=0.9)
    frames = z[1000:, None] + torch.randn(1000, 5, 3, generator=torch.Generator().manual_seed(2))
    cells = {
        Cell("clean"): {"logits": z[1000:], "labels": y[1000:]},
        Cell("frequency", "band", 3): {"logits": -z[1000:], "labels": y[1000:]},
        Cell("perturbation", "tilt"): {"logits": frames, "labels": y[1000:]},
    }
    found = RuleUnderShift.of(rule, cells, raw=True)
    least, shares = rule.tensors()["threshold"], []
    for rows, label in zip(torch.softmax(frames.double(), -1), y[1000:], strict=True):
        kept = rows.amax(1) >= least
        if kept.any():
            shares.append((rows.argmax(1) == label)[kept].double().mean())
    judged = found.cells[Cell("perturbation", "tilt")].estimates["accuracy_accepted"]
    assert judged.value == pytest.approx(float(torch.stack(shares).mean())) and judged.method == "normal, over groups"
    assert "under noise of frequency 0.30, " in found.sentence() and "tilt (sequence)" in found.text()
    assert found.text().splitlines()[3].split()[-1] == "yes"


def test_a_promise_about_groups_has_no_verdict_on_items(items: tuple[torch.Tensor, torch.Tensor]) -> None:
    z, y = items
    chosen_on = calibrant.predictions(z[:1000], y[:1000], group=torch.arange(1000) // 2)
    cells = {
        Cell("clean"): {"logits": z[1000:], "labels": y[1000:]},
        Cell("frequency", "band", 3): {"logits": -z[1000:], "labels": y[1000:]},
    }
    found = RuleUnderShift.of(calibrant.decide(chosen_on, accuracy=0.85), cells, raw=True)
    assert "measured on items instead of groups, so without a verdict on the promise of 85%" in found.sentence()
    assert "contradicts" not in found.sentence() and "broken" not in found.sentence()
    assert [cell["broken"] for cell in found.to_dict()["cells"].values()] == [None, None]


def test_items_that_the_rule_was_chosen_on_are_refused() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(400, 1, 8, 8, generator=g)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)).eval()
    with torch.no_grad():
        z = 8 * model(x)
    y = z.argmax(1)
    rule = calibrant.decide(z[:200], y[:200], accuracy=0.9)

    def stressed(first: int) -> calibrant.report.stress_report.StressReport:
        few = {"suite": "corruptions", "types": ["contrast"], "severities": [5], "intervals": False}
        return calibrant.stress(lambda u: 8 * model(u), x[first:][:200], y[first:][:200], rule=rule, **few)

    report = stressed(200)
    assert report.rule is not None and "On clean data 100.0% of the accepted are right" in report.table()
    with pytest.raises(SplitError, match="items that are stressed; choose it on other items"):
        stressed(0)
