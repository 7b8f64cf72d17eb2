"""Several processes at one list of units: locks, failures, time, and an interrupted call that goes on."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from benchmarks import smoothing_runs
from benchmarks.locks import claimed, released, taken
from benchmarks.workers import OutOfTime, once, squeezed, work
from calibrant.bench import Store
from calibrant.files.paths import visible
from calibrant.papers.experiment import scale_of, schedule_note
from calibrant.training.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Chore:
    name: str
    folder: Path
    cost: float = 0.0
    finished: bool = False
    log: list[str] = field(default_factory=list)

    @property
    def lock(self) -> Path:
        return self.folder / f"{self.name}.lock"

    def done(self) -> bool:
        return self.finished

    def seconds(self) -> float:
        return self.cost


def finish(unit: Chore) -> None:
    assert unit.lock.read_text() == str(os.getpid())
    unit.finished = True


def test_units_are_taken_in_order_if_they_fit_and_nobody_has_them(tmp_path: Path) -> None:
    a, b, c, d = (Chore(n, tmp_path, cost) for n, cost in (("a", 0), ("b", 1e9), ("c", 0), ("d", 0)))
    d.lock.write_text(str(os.getpid()))  # whoever was at it is gone, and has left us its number
    with c.lock.open("w") as somebody_else:
        fcntl.flock(somebody_else, fcntl.LOCK_EX)
        assert taken(c.lock) and not taken(d.lock)
        work([a, b, c, d], finish, time.time() + 60)
    assert [u.finished for u in (a, b, c, d)] == [True, False, False, True]
    assert not a.lock.exists() and c.lock.exists() and not d.lock.exists()


def test_a_failing_unit_is_said_and_passed_by_and_tried_again_in_the_next_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = Chore("bad", tmp_path), Chore("good", tmp_path)

    def do(unit: Chore) -> None:
        unit.log.append("tried")
        if unit is bad:
            raise ValueError("no such thing")
        unit.finished = True

    deadline = time.time() + 60
    work([bad, good], do, deadline)
    work([bad, good], do, deadline)  # another process of the same call leaves it alone
    assert bad.log == ["tried"] and good.finished
    assert "bad: FAILED, ValueError: no such thing" in capsys.readouterr().out
    work([bad, good], do, deadline + 1)
    assert bad.log == ["tried", "tried"]


def test_out_of_time_ends_the_work_and_leaves_no_lock(tmp_path: Path) -> None:
    first, second = Chore("first", tmp_path), Chore("second", tmp_path)

    def do(unit: Chore) -> None:
        raise OutOfTime("after epoch 3")

    work([first, second], do, time.time() + 60)
    assert not list(tmp_path.glob("*.lock")) and not list(tmp_path.glob("*.failed"))


RACES = """
import sys, time
from pathlib import Path
from benchmarks.locks import claimed, released
lock, owners = Path(sys.argv[1]), Path(sys.argv[2])
for turn in range(200):
    while time.time() % 0.01 > 0.001:  # all at once
        pass
    if claimed(lock):
        (owners / "at it").touch(exist_ok=False)  # fails if another one is
        (owners / "at it").unlink()
        released(lock)
"""


def test_of_several_processes_one_owns_a_lock(tmp_path: Path) -> None:
    (tmp_path / "x.lock").write_text(str(os.getpid()))  # left by somebody
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    words = [sys.executable, "-c", RACES, str(tmp_path / "x.lock"), str(tmp_path)]
    racing = [subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [p.communicate()[1] for p in racing] == ["", "", ""]


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    held = "import sys, time, pathlib\nfrom benchmarks.locks import claimed\nassert claimed(pathlib.Path(sys.argv[1]))"
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    words = [sys.executable, "-c", f"{held}\nprint('mine', flush=True)\ntime.sleep(600)", str(lock)]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"mine\n"
        assert taken(lock) and not claimed(lock) and lock.read_text() == str(owner.pid)
        owner.kill()
    assert not taken(lock) and claimed(lock) and lock.read_text() == str(os.getpid())
    released(lock)
    assert not lock.exists() and not taken(lock)


def test_a_file_is_made_once_and_never_seen_half(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.write_text("whole")

    for _ in range(2):
        assert once(tmp_path / "x.npy", make).read_text() == "whole"
    assert len(made) == 1 and made[0].name != "x.npy" and claimed(tmp_path / "x.lock")


def test_a_squeezed_schedule_says_so() -> None:
    paper = RECIPES["ss/cifar100_resnet18"]
    same, short = squeezed(paper, 200, 128), squeezed(paper, 20, 512)
    assert same == paper and scale_of(same, paper) == "paper" and not schedule_note(same, paper)
    assert short.schedule.milestones == (6, 13, 16) and short.optimiser.lr == pytest.approx(0.2)
    assert scale_of(short, paper) == "20of200b512"
    assert "20 epochs instead of 200" in schedule_note(short, paper)
    assert "batch 512 instead of 128; learning rate 0.2 instead of 0.1" in schedule_note(short, paper)
    assert short.schedule.warmup == pytest.approx(0.1) and "warm-up" not in schedule_note(short, paper)
    warm = squeezed(paper, 20, None).with_settings({"schedule.warmup": 1.0})
    assert scale_of(warm, paper) == "20of200w1" and "a warm-up of 1 epochs" in schedule_note(warm, paper)


def test_an_interrupted_call_goes_on_in_the_next(tmp_path: Path) -> None:
    """Killed in the middle of its trainings; the next call resumes them, measures, and packs few files."""
    rows = [f"ss/table_e1/cifar100_resnet18_dropout{s}" for s in ("", "_smooth")]
    words = ["--smoke", "--seeds", "0", "--epochs", "10", "--minutes", "5", "--out", str(tmp_path), "--only", *rows]
    command = [sys.executable, "-m", "benchmarks.smoothing_runs", *words, "--parallel", "2"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as call:
        end = time.time() + 120
        while not visible(tmp_path, "runs/ss-*/checkpoint/*.json") and time.time() < end and call.poll() is None:
            time.sleep(0.1)
        call.send_signal(signal.SIGTERM)
        call.wait(30)
    begun = {p.parents[1] for p in visible(tmp_path, "runs/ss-*/checkpoint/*.json")}
    assert begun and not list(tmp_path.glob("runs/ss-*/metrics.json"))
    locks = [int(p.read_text() or 0) for p in tmp_path.glob("runs/*.lock")]
    end = time.time() + 10
    while any(Path(f"/proc/{n}").exists() for n in locks if n) and time.time() < end:
        time.sleep(0.1)
    assert smoothing_runs.main([*words, "--parallel", "1"]) == 0
    for folder in begun:  # resumed: no epoch twice
        epochs = [json.loads(line)["epoch"] for line in (folder / "log.jsonl").read_text().splitlines()]
        assert len(epochs) <= 10 + 5 and (folder / "metrics.json").is_file()
    cells = {c.experiment: c for c in Store(tmp_path / "runs" / "ss-cells").cells()}
    assert set(cells) == set(rows) and (tmp_path / "parcel-00.zip").is_file()
    smooth = next(c for name, c in cells.items() if "_smooth" in name)
    assert len(smooth.extras["curve"]["nll"]) == 4 and "corruption" in smooth.extras
    said = json.loads((tmp_path / "claims.json").read_text("utf-8"))
    [over] = said["over_seeds"]
    assert over["low"] <= over["nll"] <= over["high"] and over["seeds"] == 1 and len(said["seeds"]) == 1
    with np.load(tmp_path / "items.npz", allow_pickle=False) as items:
        few, many = (items[f"cifar100_resnet18_dropout{n}"] for n in ("_smooth|smoke|0|nll_2", "|smoke|0|nll_4"))
    assert over["nll"] == pytest.approx((few - many).mean(), rel=1e-4)
    assert smooth.extras["claim"]["metrics"]["nll"]["difference"] == pytest.approx(over["nll"], rel=1e-3)
    files = [p for p in tmp_path.iterdir() if p.is_file()]
    assert len(files) <= 8 and all(p.stat().st_size < 16 * 2**20 for p in files)
