"""A stopped training: one line says how to resume, the terminal is restored, and nothing is half-written."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

from calibrant.cli import TERMINATED
from calibrant.files.paths import visible

TRAIN = ["train", "digits/cross_entropy", "--set", "epochs=100000", "--set", "network.hidden=[8]", "--device", "cpu"]
LIMIT = 180.0


def read(terminal: int, said: list[bytes]) -> None:
    """Collect what the process writes, until it closes its end."""
    try:
        while part := os.read(terminal, 4096):
            said.append(part)
    except OSError:
        pass


def test_a_terminated_training_says_how_to_resume(tmp_path: Path) -> None:
    """SIGTERM; what Ctrl-C says and returns is in `test_failures`."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "calibrant.cli", *TRAIN, "-o", str(tmp_path / "run")]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    said: list[bytes] = []
    listener = Thread(target=read, args=(ours, said))
    listener.start()
    try:
        end = time.monotonic() + LIMIT
        while not visible(tmp_path / "run" / "checkpoint", "*.json") and time.monotonic() < end:
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == TERMINATED
    finally:
        running.kill()
        listener.join()
        os.close(ours)
    text = b"".join(said).decode("utf-8", "replace")
    assert "calibrant: terminated; run the same command again to resume" in text and "Traceback" not in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is there again"
    assert not [p for p in (tmp_path / "run").rglob("*") if p.name.startswith(".")], "nothing half-written is left"
