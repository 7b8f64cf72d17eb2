"""The script of GPU runs, on a CPU at smoke scale: begins what fits, packs little, unpacks what it packed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu_runs
from calibrant import files
from calibrant.bench import Store
from calibrant.bench.measure import measure
from calibrant.bench.store import read
from calibrant.papers import Experiment
from calibrant.train import How
from calibrant.train import read as recipe

EXPERIMENT = Experiment("test", "t1", "digits", recipe("digits/cross_entropy", ["network.hidden=[8]"]))


def test_what_is_packed_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    cells = [measure(EXPERIMENT, seed, "smoke", store, tmp_path / "runs", How("cpu", quiet=True)) for seed in (0, 1)]
    monkeypatch.setattr(gpu_runs, "FILE_LIMIT", 20_000)  # one set of predictions a file
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
        a, b = (
            files.read(path.with_suffix(".npz")),
            files.read(store.path(EXPERIMENT, cell.seed, "smoke").with_suffix(".npz")),
        )
        assert a.fingerprint() == b.fingerprint() and a.split == "test" and a.ids == b.ids


def test_the_plan_names_experiments_that_exist() -> None:
    jobs = list(gpu_runs.jobs(None, "paper", None))
    assert len({(j.experiment.name, j.seed) for j in jobs}) == len(jobs) > 10
    engines = {j.experiment.recipe.network.name: j.experiment.recipe.engine for j in jobs}
    assert engines.pop("text_cnn") == "eager" and set(engines.values()) == {"graph"}
    assert {j.experiment.recipe.engine for j in gpu_runs.jobs(["ss"], "paper", ["engine=compile"])} == {"compile"}
    assert all(j.seconds(2, {}) > j.seconds(1, {}) - 1 for j in jobs)


def test_nothing_is_begun_that_cannot_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_runs, "ROOT", tmp_path)
    assert gpu_runs.main(["--minutes", "0.1", "--device", "cpu", "--out", str(tmp_path / "out")]) == 0
    assert "not begun: ss/table_e1/cifar10_resnet18 seed 0" in capsys.readouterr().out
    assert json.loads("[" + (tmp_path / "out" / "cells.jsonl").read_text() + "]") == []
