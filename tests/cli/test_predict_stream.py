"""`calibrant predict --stream`: the items of a split as frames of one stream."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import calibrant
from calibrant import files
from calibrant.cli import run
from calibrant.cli.predict import narrowed


def predicted(trained: Path, out: Path, *more: str) -> np.ndarray:
    assert run(["predict", str(trained), "-o", str(out), *more]) == 0
    return np.load(out)["logits"].astype(np.float64)


def test_each_item_is_averaged_with_those_before_it(trained: Path, tmp_path: Path) -> None:
    z = predicted(trained, tmp_path / "alone.npz")
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    d = math.exp(-0.8)
    expected = (p[2] + d * p[1] + d * d * p[0]) / (1 + d + d * d)
    found = predicted(trained, tmp_path / "stream.npz", "--stream", "--batch", "7")
    np.testing.assert_allclose(np.exp(found[2]), expected, atol=1e-6)
    weights = np.array([d**i for i in range(6)])
    np.testing.assert_allclose(np.exp(found[100]), weights @ p[100:94:-1] / weights.sum(), atol=1e-6)
    named = predicted(trained, tmp_path / "named.npz", "--ensemble", "temporal")
    np.testing.assert_allclose(named, found, atol=1e-6)


def test_mc_dropout_in_a_stream_has_one_member_per_frame(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    out = tmp_path / "p.npz"
    options = ["--stream", "--ensemble", "dropout", "--members", "3", "--window", "2", "--scene-cut", "0.9", "--json"]
    assert run(["predict", str(trained), "-o", str(out), *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ensemble"] == "temporal" and said["size"] == 1
    assert run(["audit", str(out), "--no-intervals"]) == 0


def test_pooled_logits_are_written_in_float32_without_changing_an_audit(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--ensemble", "dropout", "--members", "3")
    narrow = tmp_path / "narrow.npz"
    predicted(trained, narrow, *options)
    assert np.load(narrow)["logits"].dtype == np.float32
    monkeypatch.setattr("calibrant.cli.predict.narrowed", lambda p, networks: p)
    wide = tmp_path / "wide.npz"
    predicted(trained, wide, *options)
    assert np.load(wide)["logits"].dtype == np.float64
    a, b = (calibrant.evaluate(files.read(path)) for path in (narrow, wide))
    for name in b:
        for end in ("value", "low", "high"):
            assert getattr(a[name], end) == pytest.approx(getattr(b[name], end), abs=1e-6), (name, end)


def test_float32_keeps_impossible_and_almost_certain_classes() -> None:
    z = torch.tensor([[0.0, -math.inf], [-1e-30, -690.0]], dtype=torch.float64)
    p = calibrant.predictions(z, [0, 0])
    found = narrowed(p, [torch.nn.Linear(1, 1)]).logits
    assert found is not None and found.dtype == torch.float32
    assert found[0, 1] == -math.inf and -2e-30 < found[1, 0] < 0
    assert narrowed(p, [torch.nn.Linear(1, 1).double()]).logits is p.logits, "a network of float64 keeps its own"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--window", "3"], "--window is a setting of a stream; add --stream"),
        (["--stream", "--decay", "1.5"], "decay=1.5"),
        (["--stream", "--scene-cut", "0"], "scene_cut=0"),
    ],
)
def test_bad_input_is_one_line(
    trained: Path, tmp_path: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["predict", str(trained), "-o", str(tmp_path / "p.npz"), *options]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "p.npz").exists()
