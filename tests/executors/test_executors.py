"""Executors run every step once, after the steps it needs; kills, failures and deadlines affect nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, repeat
from multiprocessing.util import Finalize
from pathlib import Path
from types import SimpleNamespace

import pytest

from calibrant.errors import CalibrantWarning, InputError, warn
from calibrant.executors import InProcess, LocalProcesses, Outcome, OutOfTime, Pool, execute, mps, schedule
from tests.killed import ENDED, begin, run_killed


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    end = time.time() + seconds
    while not condition() and time.time() < end:
        time.sleep(0.02)
    assert condition(), "waited in vain"


class Odd(Exception):
    """An error with two arguments, one of which cannot be pickled; some libraries have such errors."""

    def __init__(self, folder: Path, stream: object) -> None:
        super().__init__(f"odd in {folder.name}")
        self.stream = stream


class NeedsTwo(Exception):
    """An error that can be pickled, but not unpickled."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} {where}")


@dataclass(frozen=True)
class Note:
    """A step that writes a file, and a line to its log each time it runs."""

    folder: Path
    key: str
    needs: tuple[str, ...] = ()
    gpu: bool = True
    how: str = "well"
    until: str = ""  # ends when this file is there
    guess: float | None = None

    @property
    def name(self) -> str:
        return self.key

    @property
    def lease(self) -> Path:
        return self.folder / ".leases" / self.key

    def done(self) -> bool:
        return (self.folder / self.key).is_file()

    def seconds(self) -> float | None:
        return self.guess

    def runs(self) -> int:
        log = self.folder / f"{self.key}.log"
        return len(log.read_text().splitlines()) if log.is_file() else 0

    def run(self, deadline: float | None) -> None:
        assert all((self.folder / need).is_file() for need in self.needs), "begun before what it needs"
        with (self.folder / f"{self.key}.log").open("a") as log:
            log.write(f"{os.getpid()}\n")
        if self.until:
            wait_for(lambda: (self.folder / self.until).exists())
        if self.how == "fails":
            raise InputError("it was asked to")
        if self.how == "fails oddly":
            raise Odd(self.folder, threading.Lock())
        if self.how == "needs two":
            raise NeedsTwo("odd", "here")
        if self.how == "is cut":
            raise OutOfTime
        if self.how == "dies" or (self.how == "dies once" and self.runs() == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / self.key).write_text("made")


POOLS: dict[str, Callable[[], Pool]] = {"here": InProcess, "two": lambda: LocalProcesses(2)}


@pytest.mark.parametrize("pool", POOLS)
def test_steps_run_once_after_what_they_need_and_a_failure_costs_only_what_needs_it(tmp_path: Path, pool: str) -> None:
    steps = [
        Note(tmp_path, "a"),
        Note(tmp_path, "b", ("a",)),
        Note(tmp_path, "wrong", how="fails"),
        Note(tmp_path, "after wrong", ("wrong",)),
        Note(tmp_path, "later still", ("after wrong",)),
        Note(tmp_path, "c", ("a", "b"), gpu=False),
        Note(tmp_path, "cut", how="is cut"),
    ]
    (tmp_path / "old").write_text("made before")
    found = {o.step.key: o for o in execute([*steps, Note(tmp_path, "old")], POOLS[pool]())}
    assert {k: o.ending for k, o in found.items()} == {
        "a": "done", "b": "done", "wrong": "failed", "after wrong": "skipped", "later still": "skipped", "c": "done",
        "cut": "cut",
    }  # fmt: skip
    assert found["wrong"].why == "it was asked to" and isinstance(found["wrong"].error, InputError)
    assert [s.runs() for s in steps] == [1, 1, 1, 0, 0, 1, 1]


def test_a_killed_process_is_replaced_and_its_step_tried_again(tmp_path: Path) -> None:
    steps = [Note(tmp_path, "a", how="dies once"), Note(tmp_path, "b"), Note(tmp_path, "c", how="dies")]
    found = {o.step.key: o for o in execute(steps, LocalProcesses(1))}
    assert {k: o.ending for k, o in found.items()} == {"a": "done", "b": "done", "c": "failed"}
    assert [s.runs() for s in steps] == [2, 1, 3] and found["c"].why.startswith("its process died 3 times")


def set_clock(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    """Let `execute` begin at 0, and look at its clock at `now` ever after."""
    times = chain([0.0], repeat(now))
    monkeypatch.setattr(schedule, "time", SimpleNamespace(time=lambda: next(times)))


def test_only_steps_that_should_end_in_time_are_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        Note(tmp_path, "late", guess=2500.0),
        Note(tmp_path, "needs it", ("late",)),
        Note(tmp_path, "short", guess=1.0),
        Note(tmp_path, "unknown"),
        Note(tmp_path, "without reserve", gpu=False, guess=2500.0),
    ]
    set_clock(monkeypatch, 2000.0)
    found = {o.step.key: o.ending for o in execute(steps, InProcess(), 5000.0, reserve=1000.0)}
    assert found == {
        "late": "left", "needs it": "skipped", "short": "done", "unknown": "done", "without reserve": "done",
    }  # fmt: skip


@pytest.mark.parametrize(("now", "ending"), [(40.0, "done"), (60.0, "left")])
def test_a_step_too_long_for_any_call_is_started_in_the_first_half_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: float, ending: str
) -> None:
    set_clock(monkeypatch, now)
    [outcome] = execute([Note(tmp_path, "long", guess=101.0)], InProcess(), 100.0)
    assert outcome.ending == ending


def test_cpu_steps_run_beside_gpu_steps(tmp_path: Path) -> None:
    steps = [Note(tmp_path, "train", until="measure"), Note(tmp_path, "measure", gpu=False)]
    endings = {o.step.key: o.ending for o in execute(steps, LocalProcesses(1, cpu_only=1))}
    assert endings == {"train": "done", "measure": "done"}  # "train" waits for "measure", and ends


CONTROL = """#!/bin/sh
read said
echo "$1 $said $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY" >> {log}
exit {code}
"""


@dataclass(frozen=True)
class Where(Note):
    """A step that records which MPS service it uses."""

    def run(self, deadline: float | None) -> None:
        (self.folder / self.key).write_text(os.environ.get(mps.PIPE, "none"))


@pytest.mark.parametrize(
    ("code", "serves", "theirs", "shared"),
    [(0, True, "", True), (0, False, "", False), (1, True, "", False), (0, True, "set", True)],
)
def test_processes_share_a_gpu_through_their_own_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, serves: bool, theirs: str, shared: bool
) -> None:
    """With a stand-in for NVIDIA's executable: the service starts, is tried, and ends with the processes."""
    control, log = tmp_path / mps.CONTROL, tmp_path / "said"
    control.write_text(CONTROL.format(log=log, code=code))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(mps, "serves", lambda environment: serves)
    if theirs:
        monkeypatch.setenv(mps.PIPE, theirs)
    list(execute([Where(tmp_path, "beside", gpu=False)], LocalProcesses(1, cpu_only=1, cuda=True)))
    assert not log.exists(), "nothing has wanted the device yet"
    step = Where(tmp_path, "where")
    with nullcontext() if shared else pytest.warns(CalibrantWarning, match="use the GPU in turns"):
        assert [o.ending for o in execute([step], LocalProcesses(1, cuda=True))] == ["done"]
    found = (tmp_path / "where").read_text()
    if theirs:
        assert found == theirs and not log.exists(), "a service that the user has set up is used as it is"
        return
    first, last = (line.split() for line in log.read_text().splitlines())
    assert first[0] == "-d" and last[0] == "quit" and first[1:] == last[1:]
    assert found == (first[1] if shared else "none")
    assert not Path(first[1]).exists()


COMMAND = """
import sys, time
from pathlib import Path
from tests.executors.test_executors import Note
from calibrant.executors import InProcess, LocalProcesses, execute
from calibrant.executors.cluster import RayCluster
quick = int(sys.argv[3])
folder, first = Path(sys.argv[1]), tuple(f"s{i}" for i in range(quick))
steps = [Note(folder, key) for key in first]
steps += [Note(folder, f"s{i}", first, until="never") for i in range(quick, 6)]
if __name__ == "__main__":
    here = {"here": InProcess, "two": lambda: LocalProcesses(2)}
    pool = here[sys.argv[2]]() if sys.argv[2] in here else RayCluster(sys.argv[2])
    print(*sorted(o.ending for o in execute(steps, pool)))
"""


def start(folder: Path, code: str, *words: str, stderr: int | None = None) -> subprocess.Popen[str]:
    """Start a command with a folder and more words; its processes read its file."""
    script = folder / "command.py"
    script.write_text(code)
    root = Path(__file__).resolve().parents[2]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, str(script), str(folder), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env)


def call(folder: Path, pool: str, quick: int) -> subprocess.Popen[str]:
    """Start a command with six steps, of which only the first `quick` ever end."""
    return start(folder, COMMAND, pool, str(quick))


def test_two_commands_share_the_work_and_nothing_is_done_twice(tmp_path: Path) -> None:
    two = [begin(COMMAND, str(tmp_path), "here", "6") for _ in range(2)]
    assert [heard.recv() for _, heard in two] == [ENDED, ENDED]
    assert [Note(tmp_path, f"s{i}").runs() for i in range(6)] == [1] * 6


def test_a_killed_command_ends_its_processes_and_the_next_one_resumes(tmp_path: Path) -> None:
    steps = [Note(tmp_path, f"s{i}") for i in range(6)]
    first = call(tmp_path, "two", 2)
    wait_for(lambda: [s.runs() for s in steps[:4]] == [1] * 4)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    assert [s.done() for s in steps] == [True] * 2 + [False] * 4
    pids = {int(line) for i in range(4) for line in _log(tmp_path, i)}
    wait_for(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])
    list(execute(steps, InProcess()))
    assert all(s.done() for s in steps)
    assert [s.runs() for s in steps] == [1, 1, 2, 2, 1, 1], "what was done is not done again"


def _log(folder: Path, i: int) -> list[str]:
    return (folder / f"s{i}.log").read_text().splitlines()


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_of_any_library_fails_one_step_with_its_message(tmp_path: Path, pool: str) -> None:
    steps = [Note(tmp_path, "odd", how="fails oddly"), Note(tmp_path, "two", how="needs two"), Note(tmp_path, "good")]
    found = {o.step.key: o for o in execute(steps, POOLS[pool]())}
    assert {k: o.ending for k, o in found.items()} == {"odd": "failed", "two": "failed", "good": "done"}
    assert found["odd"].why == f"Odd: odd in {tmp_path.name}" and found["two"].why == "NeedsTwo: odd here"
    assert [s.runs() for s in steps] == [1, 1, 1]


def test_a_process_is_replaced_after_a_failed_step(tmp_path: Path) -> None:
    """After a CUDA error a process cannot use the device any more; after a success it runs the next step."""
    hows = ("well", "well", "fails", "well")
    steps = [Note(tmp_path, f"s{i}", how=how) for i, how in enumerate(hows)]
    assert [o.ending for o in execute(steps, LocalProcesses(1))] == ["done", "done", "failed", "done"]
    first, second, third, last = (_log(tmp_path, i) for i in range(4))
    assert first == second == third != last


@dataclass(frozen=True)
class Leaving(Note):
    """A step that records when its process ends by itself; a killed process does not."""

    def run(self, deadline: float | None) -> None:
        Finalize(None, (self.folder / f"{self.key} ended").touch, exitpriority=0)
        super().run(deadline)


@dataclass(frozen=True)
class Warns(Note):
    """A step that warns."""

    def run(self, deadline: float | None) -> None:
        warn("the GPU is shared")
        super().run(deadline)


WARNS = """
import sys
from pathlib import Path
from tests.executors.test_executors import Warns
from calibrant.executors import LocalProcesses, execute
if __name__ == "__main__":
    list(execute([Warns(Path(sys.argv[1]), "a")], LocalProcesses(1)))
"""


def test_a_warning_in_a_process_is_one_line(tmp_path: Path) -> None:
    command = start(tmp_path, WARNS, stderr=subprocess.PIPE)
    assert command.communicate()[1] == "note: the GPU is shared\n"


def test_idle_processes_are_not_killed(tmp_path: Path) -> None:
    """Killing a process can fail the work of others that share its device."""
    steps = [Leaving(tmp_path, "failed", how="fails"), Leaving(tmp_path, "done")]
    assert {o.ending for o in execute(steps, LocalProcesses(2))} == {"failed", "done"}
    assert all((tmp_path / f"{step.key} ended").exists() for step in steps)


def test_a_busy_step_is_polled_with_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command runs the busy step while this one runs another."""
    slept: list[float] = []
    monkeypatch.setattr(schedule.time, "sleep", lambda seconds: slept.append(seconds))

    class Beside:
        def __init__(self) -> None:
            self.steps: dict[str, Note] = {}
            self.looks = 0

        def room(self, step: Note) -> bool:
            return True

        def start(self, step: Note, deadline: float | None) -> None:
            self.steps[step.key] = step

        def wait(self) -> list[Outcome]:
            self.looks += 1
            key = "held" if "held" in self.steps else "long"
            return [Outcome(self.steps.pop(key), "busy" if key == "held" and self.looks < 4 else "done")]

        def close(self) -> None:
            pass

    ended = [o.step.key for o in execute([Note(tmp_path, "held"), Note(tmp_path, "long")], Beside())]
    assert ended == ["held", "long"] and slept == [schedule.RECHECK] * 3


LEFT = """
import os, signal, sys, tempfile
from pathlib import Path
from calibrant.executors import mps
folder = Path(sys.argv[1])
os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
tempfile.tempdir = str(folder)
mps.serves = lambda environment: True
with mps.daemon() as environment:
    (folder / "pipe").write_text(environment[mps.PIPE])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_command_ends_the_service_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control, log = tmp_path / mps.CONTROL, tmp_path / "said"
    control.write_text(CONTROL.format(log=log, code=0))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(mps, "serves", lambda environment: True)
    run_killed(LEFT, str(tmp_path))
    pipe = (tmp_path / "pipe").read_text()
    assert Path(pipe).is_dir(), "its folder is left, and so would be its service"
    with mps.daemon() as first, mps.daemon() as second:
        said = [line.split() for line in log.read_text().splitlines()]
        started = [first[mps.PIPE], second[mps.PIPE]]
        assert [(words[0], words[1]) for words in said] == [("-d", pipe), ("quit", pipe), *(("-d", p) for p in started)]
        assert not Path(pipe).exists() and len({pipe, *started}) == 3, "one that is in use is left alone"
    quits = [line.split()[1] for line in log.read_text().splitlines() if line.split()[0] == "quit"]
    assert quits == [pipe, second[mps.PIPE], first[mps.PIPE]]
