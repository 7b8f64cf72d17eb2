"""The cost of a table before it runs, from the paces of cells."""

from __future__ import annotations

import json

import pytest

from calibrant.bench import Cell
from calibrant.bench.plan import Paces, plan, wall
from calibrant.cli import run
from calibrant.papers import Experiment, experiments

[ROW] = experiments("rc/table1/cifar10_focal")
[OTHER] = experiments("rc/table1/cifar100_focal")


def cell(experiment: Experiment, seed: int, minutes: float, *, epochs: int = 20, **extras: int) -> Cell:
    return Cell(
        experiment=experiment.name,
        seed=seed,
        scale="paper",
        key=experiment.key(seed, "paper"),
        status="done",
        settings={"recipe": {**experiment.at(seed, "paper").plain(), "epochs": epochs}},
        seconds=60 * minutes,
        device="some GPU",
        extras=extras,
    )


def test_minutes_follow_from_epochs_and_the_median_pace() -> None:
    cells = [cell(ROW, 0, 1.0), cell(ROW, 1, 3.0), cell(ROW, 2, 8.0, parallel=4)]  # 1, 3 and 2 minutes for 20 epochs
    own, other = plan([ROW, OTHER], cells, 5, "paper")
    assert (own.done, own.trainings, own.epochs) == (3, 2, 200)
    assert (
        own.minutes == pytest.approx(20)
        and own.total == pytest.approx(40)
        and own.pace == "resnet32 on cifar10, 3 cells"
    )
    assert other.trainings == 5 and other.pace == "resnet32 on other data, 3 cells"
    assert plan([ROW], cells, 5, 30)[0].minutes == pytest.approx(3)
    assert plan([ROW, ROW], cells, 5, "paper")[1].trainings == 0  # shared trainings count once
    assert wall([own, other], 1) == pytest.approx(140) and wall([own, other], 64) == pytest.approx(20)


def test_without_a_pace_the_plan_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert Paces([]).of(ROW.recipe) == (None, "no cell of resnet32")
    on_cpu = Cell(**{**vars(cell(ROW, 0, 1.0)), "device": "cpu"})
    assert Paces([on_cpu]).of(ROW.recipe)[0] is None
    nowhere = str(tmp_path_factory.mktemp("empty"))
    assert run(["bench", "plan", "rc/table1", "--seeds", "3", "--results", nowhere]) == 0
    shown = capsys.readouterr().out
    assert "unknown  no cell of resnet32" in shown and "48 trainings, 48 of them without a measured pace" in shown
    assert run(["bench", "plan", "rc/table1", "--seeds", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 16 and found["gpu_minutes"] > 0 and found["wall"]["64"] < found["wall"]["1"]
    assert run(["bench", "plan", "rc/tabel1"]) == 2
