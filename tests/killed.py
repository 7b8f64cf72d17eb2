"""A process that is killed (SIGKILL) at the k-th file it is about to finish: the worst moment for what it leaves.

`leave(script, k)` runs Python source in a process of its own. The file in the making has been written under its
temporary name (`calibrant.files.atomic`), half of it if `half`, and never gets its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

_DIES = """
import os, signal
from pathlib import Path

_replace, _left = os.replace, [{k}]

def _dies(source, target, **options):
    _left[0] -= 1
    if not _left[0]:
        if {half}:
            Path(source).write_bytes(Path(source).read_bytes()[: Path(source).stat().st_size // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    _replace(source, target, **options)

os.replace = _dies
"""


def leave(script: str, k: int, *words: str, half: bool = False) -> None:
    """Run the script up to its k-th finished file, and not through it."""
    done = subprocess.run(
        [sys.executable, "-c", _DIES.format(k=k, half=half) + script, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL, f"not killed at file {k}: {done.stderr}"
