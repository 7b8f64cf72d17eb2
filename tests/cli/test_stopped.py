"""Ctrl-C and SIGTERM: one line that says how to go on, the terminal as it was, and a rerun that does."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calibrant.cli import INTERRUPTED, TERMINATED
from calibrant.files.listing import visible

COMMAND = [sys.executable, "-c", "from calibrant.cli import main; main()", "train", "digits/cross_entropy"]
SETTINGS = ["--set", "epochs=4000", "--set", "network.hidden=[8]", "--device", "cpu"]


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, INTERRUPTED, "interrupted"), (signal.SIGTERM, TERMINATED, "terminated")],
)
def test_a_training_that_is_stopped_says_how_to_go_on(tmp_path: Path, number: int, code: int, word: str) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"}
    command = [*COMMAND, "-o", str(tmp_path / "run"), *SETTINGS]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as running:
        os.close(theirs)
        said, end = b"", time.monotonic() + 120
        while not visible(tmp_path / "run" / "checkpoint", "*.json") and time.monotonic() < end:
            said += os.read(ours, 4096)
        running.send_signal(number)
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # the other end is closed
            pass
        assert running.wait(60) == code
    os.close(ours)
    text = said.decode("utf-8", "replace")
    assert f"calibrant: {word}; give the same command again to go on" in text and "Traceback" not in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is there again"
    assert visible(tmp_path / "run" / "checkpoint", "*.json")
    assert not [p for p in (tmp_path / "run").rglob("*") if p.name.startswith(".")], "nothing half-written is left"
