"""A process that is killed (SIGKILL) at the k-th file it is about to finish: the worst moment for what it leaves.

`begin(script)` runs Python source in a process of its own, `leave(script, k)` up to such a kill. The file in the making
has been written under its temporary name (`calibrant.files.atomic`), half of it if `half`, and never gets its own.

Processes are forked from a server that has imported the library and done nothing else: importing takes longer than
most scripts.
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
    """A process that runs the script with `words` as its arguments, and where it says what went wrong."""
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
    """Run the script up to its k-th finished file, and not through it."""
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
