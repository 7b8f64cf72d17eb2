"""The script of GPU runs, on a CPU at smoke scale: begins what fits, packs little, unpacks what it packed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpu_runs


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
    assert gpu_runs.main(["--minutes", "0.1", "--device", "cpu"]) == 0
    assert "not begun: rc/table1/cifar10_cross_entropy seed 0" in capsys.readouterr().out
