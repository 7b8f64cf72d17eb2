"""A second training in the same folder is refused with the process id of the first; a kill frees the folder."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from calibrant.cli import run
from calibrant.errors import CalibrantWarning, FileError
from calibrant.files import locks
from calibrant.training import How, read, select
from tests.killed import begin

SETTINGS = ["epochs=2", "network.hidden=[4]"]
QUIET = How(device="cpu", quiet=True)
WAITS = f"""
import sys, time
from calibrant.training import How, read, train
def wait(epoch, validation):
    time.sleep(600)
train(read("digits/focal", {SETTINGS!r}), sys.argv[1], How(device="cpu", quiet=True, listen=wait))
"""


def _holds(folder: Path, pid: int | None) -> bool:
    return (folder / locks.LOCK).is_file() and (folder / locks.LOCK).read_text() == str(pid)


def test_the_second_training_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    settings = [word for text in SETTINGS for word in ("--set", text)]
    again = ["train", "digits/focal", "-o", str(folder), "--device", "cpu", *settings]
    first, _ = begin(WAITS, str(folder))
    try:
        end = time.monotonic() + 300
        while not _holds(folder, first.pid) and time.monotonic() < end:
            time.sleep(0.02)
        assert run(again) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"in use by process {first.pid};" in said
        with pytest.raises(FileError, match=f"process {first.pid}"):
            select(read("digits/focal", ["selection={grid={seed=[0, 1]}}"]), folder, QUIET)
    finally:
        first.kill()
        first.join()
    assert (folder / locks.LOCK).is_file()  # what the kill left holds nobody up
    assert run(again) == 0
    assert not (folder / locks.LOCK).exists() and (folder / "metrics.json").is_file()


def test_one_at_a_time(tmp_path: Path) -> None:
    """Of many threads that try at once, never two hold the lock, and some get it."""
    inside, most, refused = 0, 0, 0
    count = threading.Lock()

    def visit() -> None:
        nonlocal inside, most, refused
        for _ in range(200):
            try:
                with locks.alone_in(tmp_path):
                    with count:
                        inside += 1
                        most = max(most, inside)
                    with count:
                        inside -= 1
            except FileError:
                with count:
                    refused += 1

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and refused < 800
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),  # Lightning, on the second node
        ({"RANK": "8", "LOCAL_RANK": "0", "GROUP_RANK": "1"}, False),  # torchrun, on the second node
        ({"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "SLURM_NTASKS": "16", "SLURM_PROCID": "0"}, True),
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "8", "SLURM_LOCALID": "0"}, False),  # srun, on the second node
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, True),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "RAY_RAYLET_PID": "7"}, True),  # a step on a Ray cluster is alone
    ],
)
def test_only_one_of_several_processes_is_the_first(
    environment: dict[str, str], first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*locks.RANKS, "SLURM_NTASKS", "SLURM_PROCID", "RAY_RAYLET_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert locks.first_process() == first


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def none(handle: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.warns(CalibrantWarning, match=f"{tmp_path}.*no locks.*one command at a time"), locks.alone_in(tmp_path):
        assert (tmp_path / locks.LOCK).is_file()
