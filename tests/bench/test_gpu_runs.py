"""The script of GPU runs, on a CPU at smoke scale: begins what fits, packs little, unpacks what it packed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu_runs
from calibrant import files
from calibrant.bench import Store
from calibrant.bench.measure import measure
from calibrant.bench.store import KEY_LENGTH, read
from calibrant.papers import Experiment
from calibrant.training import How
from calibrant.training import read as recipe

EXPERIMENT = Experiment("test", "t1", "digits", recipe("digits/cross_entropy", ["network.hidden=[8]"]))


def test_what_is_packed_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_runs, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_runs, "FILE_LIMIT", 20_000)  # one cell's predictions per file
    store, how = Store(tmp_path / "store"), How("cpu", quiet=True, keep_epochs=True)
    cells = [measure(EXPERIMENT, seed, "smoke", store, tmp_path / "runs", how) for seed in (0, 1)]
    gpu_runs.pack(store, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "cells.jsonl",
        "predictions-00.npz",
        "predictions-01.npz",
    ]
    gpu_runs.unpack(tmp_path / "out", tmp_path / "results")
    again = Store(tmp_path / "results")
    assert list(again.cells()) == list(store.cells()) == cells
    for cell in cells:
        path = again.path(EXPERIMENT, cell.seed, "smoke")
        assert read(path) == cell
        with np.load(path.with_suffix(".npz")) as home:
            for part in ("test", "calibration", "validation"):
                made = files.read(tmp_path / "runs" / cell.key[:KEY_LENGTH] / f"{part}.npz")
                assert np.array_equal(home[f"{part}_logits"], made.logits.numpy())
                assert np.array_equal(home[f"{part}_labels"], made.labels.numpy())
            predicted, labels = home["epochs_predicted"], home["epochs_labels"]
            assert predicted.shape == (1, len(labels)) and home["epochs_largest_logit"].shape == predicted.shape


def test_the_plan_names_experiments_that_exist() -> None:
    jobs = list(gpu_runs.jobs(None, "paper", None))
    assert len({(j.experiment.name, j.seed) for j in jobs}) == len(jobs) > 10
    engines = {j.experiment.recipe.network.name: j.experiment.recipe.engine for j in jobs}
    assert engines.pop("text_cnn") == "eager" and set(engines.values()) == {"compile+graph"}
    assert {j.experiment.recipe.engine for j in gpu_runs.jobs(["ds"], "paper", ["engine=compile"])} == {"compile"}
    assert all(j.seconds(2, {}) > j.seconds(1, {}) - 1 for j in jobs)


def test_nothing_is_begun_that_cannot_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_runs, "ROOT", tmp_path)
    assert gpu_runs.main(["--minutes", "0.1", "--device", "cpu", "--out", str(tmp_path / "out")]) == 0
    assert "not begun: rc/table1/cifar10_cross_entropy seed 0" in capsys.readouterr().out
    assert json.loads("[" + (tmp_path / "out" / "cells.jsonl").read_text() + "]") == []
