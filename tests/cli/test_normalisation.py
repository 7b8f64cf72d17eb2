"""Normalisation of inputs: a user's own data are not changed, a run keeps its own, and one line states it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from calibrant import files
from calibrant.cli import run

MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


def items(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, 8, 8, generator=g) * 0.5 + 0.4
    y = (x.mean((1, 2, 3)) > 0.66).long()
    y[: n * 6 // 100] = 1 - y[: n * 6 // 100]
    return TensorDataset(x, y)


def parts():
    return {"train": items(500, 0), "calibration": items(500, 1), "test": items(500, 2)}


class Threshold(nn.Module):
    def forward(self, x):
        z = 100 * (x.mean((1, 2, 3)) - 0.66)
        return torch.stack([torch.zeros_like(z), z], 1)


def net():
    return Threshold()
"""

Said = Callable[..., tuple[dict[str, object], str]]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    monkeypatch.chdir(tmp_path)
    Path("raw_module.py").write_text(MODULE)
    monkeypatch.delitem(__import__("sys").modules, "raw_module", raising=False)

    def call(*argv: str) -> tuple[dict[str, object], str]:
        code = run([*argv, "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        return json.loads(out), err

    return call


def test_a_model_is_reported_as_accurate_as_it_is_on_raw_data(said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("predict", "raw_module:net", "--data", "raw_module:parts", "-o", "p.npz")
    found, err = said(*command)
    assert found["accuracy"] == 0.94
    assert found["inputs"] == "as they are" and err == ""
    p = files.read("p.npz")
    assert float((p.logits.argmax(1) == p.labels).double().mean()) == 0.94  # type: ignore[union-attr]
    assert run(command) == 0
    assert capsys.readouterr() == ("p.npz: 500 items of test, 2 classes, accuracy 94.00%\n", "inputs: as they are\n")


def test_mean_and_std_can_be_the_datas_own(said: Said) -> None:
    found, _ = said(
        *("predict", "raw_module:net", "--data", "raw_module:parts", "-o", "p.npz", "--mean", "own", "--std", "own")
    )
    assert found["accuracy"] != 0.94
    words = str(found["inputs"])
    mean, std = (float(words.split(word)[1].split(",")[0]) for word in ("minus mean ", "divided by std "))
    assert mean == pytest.approx(0.65, abs=0.01) and std == pytest.approx(0.5 / 12**0.5, abs=0.01)
    numbers = ("--mean", "0.1", "--std", "2")
    found, _ = said("predict", "raw_module:net", "--data", "raw_module:parts", "-o", "p.npz", *numbers)
    assert found["inputs"] == "minus mean 0.1, divided by std 2"


def test_a_file_is_not_normalised_except_for_bytes(said: Said) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(100, 230, (200, 8, 8, 1)).astype(np.uint8)
    y = ((x / 255).mean((1, 2, 3)) > 0.66).astype(int)
    np.savez("x.npz", images=x, labels=y)
    found, _ = said("predict", "raw_module:net", "--data", "x.npz", "-o", "p.npz")
    assert found["accuracy"] == 1.0 and found["inputs"] == "divided by 255"
    found, _ = said("predict", "raw_module:net", "--data", "x.npz", "-o", "p.npz", "--mean", "own", "--std", "own")
    assert found["accuracy"] != 1.0 and "divided by 255, minus mean 0.6" in str(found["inputs"])


def test_stress_and_probe_normalise_alike(said: Said) -> None:
    argv = ("raw_module:net", "--data", "raw_module:parts", "-o")
    quick = ("--types", "gaussian_noise", "--severities", "1", "--calibrators", "none", "--no-intervals")
    found, _ = said("stress", *argv, "s", *quick)
    assert found["inputs"] == "as they are"
    assert found["clean"]["metrics"]["accuracy"]["value"] == 0.94  # type: ignore[index]
    found, _ = said("probe", *argv, "r", "--limit", "20", "--levels", "2")
    assert found["inputs"] == ["as they are"]


def test_a_run_keeps_the_normalisation_it_was_trained_with(said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.toml").write_text('name = "own"\nepochs = 1\n[data]\nname = "raw_module:parts"\n[network]\nname = "mlp"\n')
    assert run(["train", "r.toml", "-o", "run", "--data", "raw_module:parts"]) == 0
    err = capsys.readouterr().err
    line = next(x for x in err.splitlines() if x.startswith("inputs: "))
    assert "minus mean 0.6" in line and "divided by std 0.14" in line
    found, _ = said("predict", "run", "--data", "raw_module:parts", "-o", "p.npz")
    assert f"inputs: {found['inputs']}" == line
    expected, again = files.read("run/test.npz"), files.read("p.npz")
    np.testing.assert_allclose(again.logits, expected.logits, atol=1e-5)


def test_a_model_with_one_logit_is_accepted(said: Said) -> None:
    one = "\n\ndef one():\n    return nn.Sequential(Threshold(), nn.Linear(2, 1, bias=False)).requires_grad_(False)\n"
    Path("raw_module.py").write_text(MODULE + one)
    found, _ = said("predict", "raw_module:one", "--data", "raw_module:parts", "-o", "p.npz")
    assert found["k"] == 2 and files.read("p.npz").logits.shape == (500, 2)
