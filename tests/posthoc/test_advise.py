"""Advice names what was fitted on which items, and recommends what the figures support."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import calibrant
from calibrant.cli import run
from calibrant.errors import InputError, SplitError
from calibrant.posthoc.advise import advise, halves
from calibrant.types import jsonable
from tests.posthoc.simulated import simulated


def test_overconfident_predictions_get_a_map() -> None:
    a = advise(simulated(1500, 3, 3.0), budget=0.5)
    assert a.chosen != "as it is" and a.sentence.startswith(f"Use {a.chosen}") and "beyond noise" in a.sentence
    assert re.search(r"ECE \d+\.\d\d% → \d+\.\d\d%", a.sentence)  # as in every table
    assert "random half (750 items, seed 0)" in a.how
    before, after = a.rows[0], next(r for r in a.rows if r["method"] == a.chosen)
    assert after["nll"]["value"] < before["nll"]["value"] and after["nll verdict"] == "better"
    assert after["nll"]["low"] is not None and a.command is not None
    assert json.loads(json.dumps(jsonable(a.to_dict())))["chosen"] == a.chosen


def test_calibrated_predictions_are_left_alone() -> None:
    a = advise(simulated(1500, 3), budget=0.3)
    assert a.chosen == "as it is" and "Leave" in a.sentence and a.command is None and a.after is None


def test_given_calibration_data_are_used_and_all_items_judged() -> None:
    test, held = simulated(800, 3, 3.0, 1), simulated(900, 3, 3.0, 2, "calibration")
    a = advise(test, held, budget=0.3)
    assert "900 items" in a.how and a.before is test and a.after is not None and a.after.n == 800
    assert a.fitted is not None and a.fitted.record.data == held.fingerprint()


def test_mistakes() -> None:
    p = simulated(300, 3)
    with pytest.raises(InputError, match="very items"):
        advise(p, p)
    with pytest.raises(InputError, match="classes"):
        advise(p, calibrant.predictions(torch.zeros(20, 4), torch.zeros(20)))
    with pytest.raises(SplitError):
        advise(p, simulated(200, 3, seed=3, split="test"))
    with pytest.raises(InputError, match="top-1"):
        advise(calibrant.predictions(predicted=[0, 1], confidence=[0.5, 0.6], labels=[0, 1]))


def test_audit_shows_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.cli.audit.BUDGET", 0.2)
    for name, seed in (("test", 4), ("held", 5)):
        p = simulated(700, 3, 3.0, seed)
        assert p.logits is not None
        np.savez(tmp_path / f"{name}.npz", logits=p.logits.numpy(), labels=p.labels.numpy())
    argv = ["audit", tmp_path / "test.npz", "--calibration", tmp_path / "held.npz", "--html", tmp_path / "r.html"]
    assert run([str(a) for a in argv]) == 0
    out = capsys.readouterr().out
    assert "as it is" in out and "Use " in out
    assert "as it is" in (page := (tmp_path / "r.html").read_text()) and "Room left" in page and "oracle" in page
    assert run([str(a) for a in [*argv[:4], "--json"]]) == 0
    assert json.loads(capsys.readouterr().out)[0]["advice"]["rows"][0]["method"] == "as it is"
    assert run([str(a) for a in ["audit", tmp_path / "test.npz", "--calibration", tmp_path / "test.npz"]]) == 2
    assert run([str(a) for a in ["audit", tmp_path / "test.npz", tmp_path / "held.npz", "--advise"]]) == 2


def test_a_budget_without_comparison_is_not_called_no_gain() -> None:
    told = advise(simulated(1500, 3, 3.0), budget=1e-9)
    assert all(row["status"] == "skipped" for row in told.ranking if row["method"] != "identity")
    assert told.chosen == "temperature" and told.sentence.startswith("Use temperature")
    assert advise(simulated(1500, 3), budget=1e-9).chosen == "as it is"


def test_halves_are_disjoint_and_seeded() -> None:
    p = simulated(101)
    a, b = halves(p, 0)
    assert a.n + b.n == 101 == len(torch.cat([a.logits, b.logits]).unique(dim=0))
    assert a.fingerprint() == halves(p, 0)[0].fingerprint() != halves(p, 1)[0].fingerprint()
