"""Ctrl-C and SIGTERM: one line that says how to go on, the terminal as it was, and nothing half-written."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibrant.cli import INTERRUPTED, TERMINATED
from calibrant.files.paths import visible

MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts jobs in the background has it ignored
from calibrant.cli import main
main()
"""
TRAIN = ["train", "digits/cross_entropy", "--set", "epochs=100000", "--set", "network.hidden=[8]", "--device", "cpu"]
LIMIT = 180.0


def heard(terminal: int, end: float) -> Iterator[bytes]:
    """What the other end says, until it hangs up or time is up."""
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                if not (part := os.read(terminal, 4096)):
                    return
            except OSError:  # nobody has the other end any more
                return
            yield part
        else:
            yield b""


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, INTERRUPTED, "interrupted"), (signal.SIGTERM, TERMINATED, "terminated")],
)
def test_a_training_that_is_stopped_says_how_to_go_on(tmp_path: Path, number: int, code: int, word: str) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", MAIN, *TRAIN, "-o", str(tmp_path / "run")]
    running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    said, sent, end = b"", False, time.monotonic() + LIMIT
    try:
        for part in heard(ours, end):
            said += part
            if not sent and visible(tmp_path / "run" / "checkpoint", "*.json"):
                running.send_signal(number)
                sent = True
        text = said.decode("utf-8", "replace")
        assert sent, text
        assert running.wait(max(1.0, end - time.monotonic())) == code, text
    finally:
        running.kill()
        os.close(ours)
    assert f"calibrant: {word}; run the same command again to resume" in text and "Traceback" not in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is there again"
    assert not [p for p in (tmp_path / "run").rglob("*") if p.name.startswith(".")], "nothing half-written is left"
