"""The cost of a table before it runs, at the pace of earlier cells; and the queue in results/PLAN.md."""

from __future__ import annotations

import itertools
import json
import re
import string
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.bench import Cell, Store
from calibrant.bench.pace import Paces, of_cells, seconds_left
from calibrant.bench.place import Place
from calibrant.bench.plan import plan, wall
from calibrant.bench.reproduction import minutes_of
from calibrant.bench.run import graph
from calibrant.bench.shifted import check
from calibrant.bench.steps import Measure
from calibrant.bench.train import Train
from calibrant.cli import run
from calibrant.papers import Experiment, experiments
from calibrant.training.environment import device_name
from calibrant.training.settings import setting

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


def test_minutes_follow_from_epochs_and_the_median_pace(tmp_path: Path) -> None:
    cells = [cell(ROW, 0, 1.0), cell(ROW, 1, 3.0), cell(ROW, 2, 8.0, parallel=4)]  # 1, 3 and 2 minutes for 20 epochs
    place = Place(tmp_path / "results", tmp_path / "runs")
    for there in cells:
        place.store.write(replace(there, settings=ROW.settings(there.seed, "paper")))
    own, other = plan([ROW, OTHER], cells, 5, "paper", place)
    assert (own.done, own.trainings, own.epochs) == (3, 2, 200)
    assert (
        own.minutes == pytest.approx(20)
        and own.total == pytest.approx(40)
        and own.pace == "resnet32 on cifar10, 3 cells"
    )
    assert other.trainings == 5 and other.pace == "resnet32 on other data, 3 cells"
    assert wall([own, other], 1) == pytest.approx(140) and wall([own, other], 64) == pytest.approx(20)
    assert plan([ROW], cells, 5, 30, place)[0].minutes == pytest.approx(3)
    shared = replace(OTHER, row="shared", calibrators=())
    assert [c.trainings for c in plan([OTHER, shared], cells, 5, "paper", place)] == [5, 0]  # and count once


def test_the_rows_of_the_queue_unfold_into_steps(tmp_path: Path) -> None:
    """Every ROW of results/PLAN.md: its rows exist, its settings are settings, and it has trainings for every seed."""
    text = (Path(__file__).resolve().parents[2] / "results" / "PLAN.md").read_text("utf-8")
    words: dict[str, str] = {}
    for name, line in re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE):
        words[name] = string.Template(line).substitute(words)
    queue = {name: line.split() for name, line in words.items() if name.startswith("ROW")}
    assert queue
    for line in queue.values():
        settings = dict(setting(value) for option, value in itertools.pairwise(line) if option == "--set")
        seeds = int(line[line.index("--seeds") + 1])
        names = itertools.takewhile(lambda word: not word.startswith("--"), line)
        rows = [e.changed(settings) for name in names for e in experiments(name)]
        for e in rows:
            check(e)
        steps = graph([(e, s) for e in rows for s in range(seeds)], "paper", Place(tmp_path, tmp_path / "runs"))
        assert sum(isinstance(step, Train) for step in steps) >= seeds
        assert sum(len(step.rows) for step in steps if isinstance(step, Measure)) == len(rows) * seeds


def test_without_a_pace_the_plan_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert Paces([]).of(ROW.recipe) == (None, "no cell of resnet32")
    on_cpu = Cell(**{**vars(cell(ROW, 0, 1.0)), "device": "cpu"})
    assert of_cells([on_cpu], minutes_of).of(ROW.recipe)[0] is None
    nowhere = str(tmp_path_factory.mktemp("empty"))
    assert run(["bench", "plan", "rc/table1", "--seeds", "3", "--results", nowhere]) == 0
    shown = capsys.readouterr().out
    assert "unknown  no cell of resnet32" in shown and "48 trainings, 48 of them without a measured pace" in shown
    assert run(["bench", "plan", "rc/table1", "--seeds", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 16 and found["gpu_minutes"] > 0 and found["wall"]["64"] < found["wall"]["1"]
    assert run(["bench", "plan", "rc/tabel1"]) == 2
    capsys.readouterr()
    settings = ("optimiser.weight_decay=0.0", "engine=compile+graph", "precision=bfloat16")
    changed = [word for s in settings for word in ("--set", s)]
    rows = ["rc/table1/cifar10_cross_entropy", "rc/figure6/cifar10_inverse_focal_2"]
    assert run(["bench", "plan", *rows, *changed, "--seeds", "3", "--json"]) == 0
    assert [r["done"] for r in json.loads(capsys.readouterr().out)["rows"]] == [3, 3]


def test_the_pace_is_that_of_one_training_of_a_pool_or_of_a_selection(tmp_path: Path) -> None:
    pool = replace(ROW, pool=4)
    [chosen] = experiments("rc/selection/cifar10_focal")
    points = len(chosen.recipe.points())
    assert points > 1
    for e, trainings in ((pool, 4), (chosen, points), (replace(chosen, pool=3), 3 * points)):
        made = replace(cell(e, 0, 2.0 * trainings), settings=e.settings(0, 20), device=device_name("cpu"))
        on_gpu = replace(made, device="some GPU")
        assert of_cells([on_gpu], minutes_of).of(ROW.at(0, 20))[0] == pytest.approx(2.0)
        store = Store(tmp_path / str(trainings))
        store.write(replace(made, key=e.key(0, 20)))
        store.write(replace(made, key=e.key(1, 20), status="failed", seconds=1e9))
        recipe = e.at(0, 20)
        found = seconds_left(recipe, tmp_path / "none", tmp_path / "runs", store)
        assert found == pytest.approx(120 * len(recipe.points()))
