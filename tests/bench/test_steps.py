"""The steps of experiments: shared steps run once, --minutes is kept, and a kill loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.bench import Cell, Store
from calibrant.bench import train as train_module
from calibrant.bench.place import Place
from calibrant.bench.run import graph
from calibrant.bench.steps import Measure, Predict
from calibrant.bench.tables import lines, row_statuses
from calibrant.bench.train import Levels, Train
from calibrant.cli import run
from calibrant.executors import InProcess, execute
from calibrant.files import hashed
from calibrant.papers import PAPERS, Experiment, experiment, experiments
from calibrant.training import How
from calibrant.training import read as recipe
from calibrant.training.settings import Choice

QUIET = How(device="cpu", quiet=True)
PLAIN = Experiment("test", "t1", "plain", recipe("digits/cross_entropy", ["network.hidden=[8]", "epochs=20"]), seeds=2)


def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "results", tmp_path / "runs", QUIET)


def test_networks_are_shared_and_levels_come_from_the_vanilla_rows_own(tmp_path: Path) -> None:
    rows = [e for name in ("vanilla", "ar_adals") for e in experiments(f"ar/table3/{name}")]
    steps = graph([(e, 0) for e in rows], "paper", place(tmp_path))
    assert [type(s) for s in steps] == [Train, Predict, Measure, Levels, Train, Predict, Measure]
    vanilla, _, _, levels, adaptive, _, _ = steps
    assert levels.needs == (vanilla.key,) and adaptive.needs == (levels.key,)
    same = [replace(e, recipe=e.recipe.with_settings({"engine": "compile"})) for e in rows]
    assert [s.key for s in graph([(e, 0) for e in same], "paper", place(tmp_path))] == [s.key for s in steps]
    deep = graph([(e, 0) for e in experiments("ss")], 20, place(tmp_path))
    trainings = [s for s in deep if isinstance(s, Train)]
    assert len(trainings) < len(experiments("ss")), "rows of several tables are one network"
    assert len({s.key for s in deep}) == len(deep)


def test_an_ensemble_is_predicted_once_for_experiments_that_differ_in_calibrators(tmp_path: Path) -> None:
    pep = replace(PLAIN, ensembles=(Choice("pep", {"members": 2, "sigma": 0.01}),))
    more = replace(pep, row="calibrated", calibrators=("temperature",))
    here = place(tmp_path)
    steps = graph([(pep, 0), (more, 0), (PLAIN, 0)], 1, here)
    assert [type(s) for s in steps] == [Train, Predict, Measure, Measure, Measure]
    assert [o.ending for o in execute(steps, InProcess())] == ["done"] * 5
    assert sorted((c.experiment, len(c.measured)) for c in here.store.cells()) == [
        ("test/t1/calibrated", 4), ("test/t1/plain", 1), ("test/t1/plain", 2),
    ]  # fmt: skip
    assert graph([(pep, 0), (more, 0), (PLAIN, 0)], 1, here) == []


def test_another_calibrator_is_measured_from_the_logits_in_the_store(tmp_path: Path) -> None:
    here, more = place(tmp_path), replace(PLAIN, row="calibrated", calibrators=("temperature",))
    both = replace(PLAIN, row="both", calibrators=("temperature", "histogram"))
    list(execute(graph([(more, 0)], 1, here), InProcess()))
    elsewhere = Place(here.results, tmp_path / "elsewhere", QUIET)
    steps = graph([(both, 0)], 1, elsewhere)
    assert [type(s) for s in steps] == [Measure], "no training"
    assert [type(s) for s in graph([(both, 1)], 1, elsewhere)] == [Train, Measure], "of another seed nothing is known"
    assert [o.ending for o in execute(steps, InProcess())] == ["done"]
    again, first = here.store.cells()
    assert again.measured["temperature"] == first.measured["temperature"]
    assert again.intervals["as_trained"] == first.intervals["as_trained"]
    assert set(again.measured) == {"as_trained", "temperature", "histogram"}
    for name in ("seconds", "device", "environment", "commit", "extras"):
        assert getattr(again, name) == getattr(first, name), name


def test_a_measurement_for_another_row_is_not_made_again(tmp_path: Path) -> None:
    here = place(tmp_path)
    list(execute(graph([(PLAIN, 0)], 1, here), InProcess()))
    other = replace(PLAIN, table="t2")
    steps = graph([(other, 0)], 1, Place(here.results, tmp_path / "elsewhere", QUIET))
    assert [type(s) for s in steps] == [Measure], "no training"
    list(execute(steps, InProcess()))
    first, second = here.store.cells()
    assert (first.experiment, second.experiment) == ("test/t1/plain", "test/t2/plain") and first.key == second.key


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    wild = replace(PLAIN, row="wild", recipe=PLAIN.recipe.with_settings({"optimiser": {"name": "sgd", "lr": 1e30}}))
    absent = replace(PLAIN, row="absent", recipe=PLAIN.recipe.with_settings({"data.name": "mnist"}))
    found = replace(PAPERS["rc"], name="test", experiments=(wild, absent, PLAIN))
    monkeypatch.setitem(PAPERS, "test", found)
    return tmp_path


def test_a_failure_is_reported_and_the_rest_runs(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "run", "test", "--seeds", "1", "--epochs", "2", "--device", "cpu", "--json"]
    assert run([*words, "--data-root", str(paper)]) == 1
    said = capsys.readouterr()
    assert [c["experiment"] for c in json.loads(said.out)["cells"] if c["status"] == "done"] == ["test/t1/plain"]
    assert "seed 0: failed, " in said.err and "mnist" in said.err and "1 more steps failed" in said.err
    cells = {c.experiment: c.status for c in Store(Path("results")).cells()}
    assert cells == {"test/t1/plain": "done", "test/t1/wild": "failed"}, "data that is not there is no failed run"


def test_a_failure_that_cannot_be_stored_does_not_stop_the_rest(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Store.write

    def full(store: Store, cell: Cell) -> Path:
        if cell.status == "failed":
            raise OSError(28, "No space left on device")
        return whole(store, cell)

    monkeypatch.setattr(Store, "write", full)
    words = ["bench", "run", "test", "--seeds", "1", "--epochs", "2", "--device", "cpu", "--data-root", str(paper)]
    assert run(words) == 1
    assert [c.experiment for c in Store(Path("results")).cells()] == ["test/t1/plain"]


def test_parallel_processes_measure_the_same_numbers(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "run", "test/t1/plain", "--epochs", "2", "--device", "cpu", "--json"]
    assert run(words) == 0
    first = json.loads(capsys.readouterr().out)["cells"]
    assert run([*words, "--results", "beside", "--runs", "beside-runs", "--parallel", "2", "--keep-epochs"]) == 0
    second = json.loads(capsys.readouterr().out)["cells"]
    assert [c["numbers"] for c in first] == [c["numbers"] for c in second] and len(first) == 2
    assert [c["environment"]["threads"] for c in first] == [c["environment"]["threads"] for c in second] == [1, 1]
    assert [c["extras"]["parallel"] for c in (*first, *second)] == [1, 1, 2, 2]
    store = Store(Path("beside"))
    assert all(store.logits(c["extras"]["run"], "epochs").is_file() for c in second)


class Minutes:
    """A clock on which every epoch takes a minute."""

    def __init__(self) -> None:
        self.epochs = 0

    def time(self) -> float:
        self.epochs += 1
        return time.time() + 60 * self.epochs


def test_minutes_are_kept_and_a_later_call_resumes(
    paper: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = ["bench", "run", "test/t1/plain", "--seeds", "1", "--device", "cpu", "--epochs", "40000"]
    monkeypatch.setattr(train_module, "time", Minutes())
    assert run([*long, "--minutes", "12"]) == 0
    assert not list(Store(Path("results")).cells())
    said = capsys.readouterr().err
    assert "out of time; the same command resumes it" in said and "steps are still to be done" in said
    [folder] = [p for p in Path("runs").iterdir() if not p.name.startswith(".")]
    reached = len((folder / "log.jsonl").read_text().splitlines())
    assert 8 <= reached <= 12
    monkeypatch.setattr(train_module, "time", Minutes())
    assert run([*long, "--minutes", "12"]) == 0
    rows = [json.loads(line)["epoch"] for line in (folder / "log.jsonl").read_text().splitlines()]
    assert rows[reached] == reached + 1, "it goes on after the last epoch"
    reached = len(rows)
    assert run([*long, "--minutes", "0.5"]) == 0
    assert len((folder / "log.jsonl").read_text().splitlines()) == reached + 1, "less than an epoch: one is trained"


def test_a_killed_call_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 the command in the middle of two trainings; the next command gets the numbers of an undisturbed one."""
    code = """
import sys, time
from dataclasses import replace
from calibrant.cli import run
from calibrant.papers import PAPERS
from calibrant.training import checkpoint
from tests.bench.test_steps import PLAIN

save = checkpoint.save
def stuck(folder, held, *more):  # also in its processes, which read this file
    save(folder, held, *more)
    if held.epoch == 3:
        time.sleep(600)
checkpoint.save = stuck
PAPERS["test"] = replace(PAPERS["rc"], name="test", experiments=(PLAIN,))
if __name__ == "__main__":
    sys.exit(run(["bench", "run", "test", "--epochs", "5", "--device", "cpu", "--parallel", "2"]))
"""
    script = tmp_path / "call.py"
    script.write_text(code)
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    first = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    end = time.time() + 300
    while len(list(tmp_path.glob("runs/*/checkpoint/00003.json"))) < 2 and time.time() < end:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    assert len(list(tmp_path.glob("runs/*/checkpoint/00003.json"))) == 2
    assert not list(tmp_path.glob("results/cells/*.json"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PAPERS, "test", replace(PAPERS["rc"], name="test", experiments=(PLAIN,)))
    words = ["bench", "run", "test", "--epochs", "5", "--device", "cpu"]
    assert run(words) == 0 and run([*words, "--results", "calm", "--runs", "calm-runs"]) == 0
    again, calm = (list(Store(tmp_path / name).cells()) for name in ("results", "calm"))
    assert len(again) == 2 and [c.measured for c in again] == [c.measured for c in calm]
    for cell in again:
        metrics = hashed.read(tmp_path / "runs" / cell.extras["run"] / "metrics.json")
        assert metrics["epochs"] == 5


def test_a_network_is_trained_again_if_an_ensemble_needs_weights_that_were_not_kept(tmp_path: Path) -> None:
    averaged = replace(PLAIN, row="swa", ensembles=(Choice("swa", {"epochs": 3}),))
    here = place(tmp_path)
    assert [o.ending for o in execute(graph([(PLAIN, 0)], 5, here), InProcess())] == ["done"] * 2
    [plain] = here.store.cells()
    steps = graph([(averaged, 0)], 5, here)
    assert [type(s) for s in steps] == [Train, Predict, Measure] and not steps[0].done()
    assert [o.ending for o in execute(steps, InProcess())] == ["done"] * 3
    again = next(c for c in here.store.cells() if c.experiment == "test/t1/swa")
    assert again.measured["as_trained"] == plain.measured["as_trained"], "the same training, from its start"
    assert again.extras["epochs"] == 5 and again.extras["ensemble_size"] == 1
    assert steps[0].done() and graph([(averaged, 0), (PLAIN, 0)], 5, here) == []


def test_a_raised_edition_makes_cells_stale_and_they_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, pep = place(tmp_path), replace(PLAIN, row="pep", ensembles=(Choice("pep", {"members": 2, "sigma": 0.01}),))
    asked = [(PLAIN, 0), (pep, 0)]

    def again() -> list[str]:
        steps = graph(asked, 1, here)
        assert all(o.ending == "done" for o in execute(steps, InProcess()))
        return sorted(type(s).__name__ for s in steps)

    assert again() == ["Measure", "Measure", "Predict", "Train"] and again() == []
    known = {c.key for c in here.store.cells()}
    for step, made in (
        ("measure", ["Measure", "Measure", "Predict", "Train"]),  # the last two are done, and only asked whether
        ("predict", ["Measure", "Predict", "Train"]),  # the plain network's own predictions are the training's
        ("train", ["Measure", "Measure", "Predict", "Train"]),
    ):
        monkeypatch.setitem(experiment.EDITIONS, step, 1)
        stale = [c for c in here.store.cells() if c.stale]
        assert stale and not any(c.counts for c in stale), step
        shown = {line.experiment for line in lines(here.store.cells())}
        assert pep.name not in shown
        [row] = row_statuses([pep], here.store, 1, 1)
        assert (row.done, row.stale) == (0, 1)
        files = len(list((tmp_path / "runs").glob("*/metrics.json")))
        assert again() == made, step
        trained = len(list((tmp_path / "runs").glob("*/metrics.json"))) - files
        assert trained == (step == "train") and again() == []
    assert known < {c.key for c in here.store.cells()}, "what was measured is kept"
