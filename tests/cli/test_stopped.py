"""A stopped training: one line says how to resume, the terminal is restored, and nothing is half-written."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from calibrant.cli import TERMINATED
from calibrant.files.paths import visible
from tests.killed import begin

MAIN = """
import os, sys
terminal = os.open(sys.argv.pop(), os.O_RDWR | os.O_NOCTTY)
for standard in (0, 1, 2):
    os.dup2(terminal, standard)
os.close(terminal)
sys.stdin, sys.stdout, sys.stderr = (open(n, "rw"[n > 0], buffering=1, closefd=False) for n in (0, 1, 2))
os.environ |= {"TERM": "xterm", "COLUMNS": "100"}
from calibrant.cli import main
main()
"""
TRAIN = ["train", "digits/cross_entropy", "--set", "epochs=100000", "--set", "network.hidden=[8]", "--device", "cpu"]
LIMIT = 180.0


def heard(terminal: int, end: float) -> Iterator[bytes]:
    """The output of the process, until it ends or time is up."""
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                if not (part := os.read(terminal, 4096)):
                    return
            except OSError:  # the process has closed its end
                return
            yield part
        else:
            yield b""


def test_a_terminated_training_says_how_to_resume(tmp_path: Path) -> None:
    """SIGTERM; what Ctrl-C says and returns is in `test_failures`, in this process."""
    ours, theirs = pty.openpty()
    running, _ = begin(MAIN, *TRAIN, "-o", str(tmp_path / "run"), os.ttyname(theirs))
    assert running.pid is not None
    said, sent, opened, end = b"", False, False, time.monotonic() + LIMIT
    try:
        for part in heard(ours, end):
            said += part
            if part and not opened:  # the process has opened its end; now its exit ends the output
                os.close(theirs)
                opened = True
            if not sent and visible(tmp_path / "run" / "checkpoint", "*.json"):
                os.kill(running.pid, signal.SIGTERM)
                sent = True
        text = said.decode("utf-8", "replace")
        assert sent, text
        running.join(max(1.0, end - time.monotonic()))
        assert running.exitcode == TERMINATED, text
    finally:
        running.kill()
        os.close(ours)
    assert "calibrant: terminated; run the same command again to resume" in text and "Traceback" not in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is there again"
    assert not [p for p in (tmp_path / "run").rglob("*") if p.name.startswith(".")], "nothing half-written is left"
