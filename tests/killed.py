"""Run a script in a process of its own and kill it (SIGKILL) when it is about to rename its k-th file.

`begin(script)` starts a process; `leave(script, k)` runs one until that kill. The k-th file has been written under its
temporary name (`calibrant.files.atomic`), or half of it with `half=True`, and is never renamed.

Processes are forked from a server that has imported the library, because importing takes longer than most scripts.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
ENDED = "the script ran to its end"
SERVER.set_forkserver_preload(["calibrant.training", "calibrant.attacks", "lightning_fabric"])


def begin(script: str, *words: str) -> tuple[BaseProcess, Connection]:
    """Return (a process that runs the script with the arguments `words`, the pipe that reports its error)."""
    heard, said = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_run, args=(script, words, said))
    process.start()
    said.close()
    return process, heard


def run_killed(script: str, *words: str) -> None:
    """Run a script that kills itself."""
    process, heard = begin(script, *words)
    process.join(300)
    code = process.exitcode  # None: it still runs
    process.kill()
    try:
        error = heard.recv()
    except EOFError:  # it was killed before it could say anything
        error = ""
    assert code == -signal.SIGKILL and not error, f"not killed: {error}"


def leave(script: str, k: int, *words: str, half: bool = False) -> None:
    """Run the script until it is killed at its k-th file."""
    run_killed(f"from tests.killed import die_at\ndie_at({k}, half={half})\n" + script, *words)


def die_at(k: int, half: bool) -> None:
    replace, left = os.replace, [k]

    def dies(source: str, target: str) -> None:
        left[0] -= 1
        if not left[0]:
            if half:
                Path(source).write_bytes(Path(source).read_bytes()[: Path(source).stat().st_size // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = dies  # type: ignore[assignment]


def _run(script: str, words: tuple[str, ...], said: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    sys.argv = ["-c", *words]
    try:
        exec(script, {"__name__": "__main__"})
        said.send(ENDED)
    except SystemExit:
        raise
    except BaseException:
        said.send(traceback.format_exc())
