"""NVIDIA's Multi-Process Service (MPS), with which several processes use one GPU at the same time instead of in turns.

The daemon has its own folders for pipe and log, so it does not disturb another daemon, and it ends with the `with`
block. If the command is killed, its daemon stays; the next command finds the daemon's folder unlocked and ends it. A
process is tried under the daemon first: in a container without the necessary rights, the daemon starts but serves
nobody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from calibrant.errors import warn
from calibrant.files import locks
from calibrant.files.paths import visible

CONTROL = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SECONDS = 60
IN_TURNS = "processes side by side use the GPU in turns, which is slower"


def serves(environment: Mapping[str, str]) -> bool:
    """Whether a new process can use the device."""
    words = [sys.executable, "-c", "import torch; torch.ones(1, device='cuda').sum().item()"]
    try:
        return not subprocess.run(words, env=environment, capture_output=True, timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        return False


@contextmanager
def daemon() -> Iterator[dict[str, str]]:
    """Start a daemon and return the environment in which processes use it. Where the user runs a daemon, return its
    environment; without the tool, return nothing."""
    control = shutil.which(CONTROL)
    if PIPE in os.environ:
        yield {name: os.environ[name] for name in (PIPE, LOG) if name in os.environ}
        return
    if control is None:
        warn(f"there is no {CONTROL} here: {IN_TURNS}")
        yield {}
        return
    own = Path(gettempdir(), f"calibrant-mps-{os.getuid()}")  # short: a socket's path has at most 107 characters
    own.mkdir(mode=0o700, exist_ok=True)
    if own.stat().st_uid != os.getuid():  # another user's folder
        yield {}
        return
    with locks.alone_in(own, wait=True):
        for folder in visible(own):
            _end_if_left(control, folder)
        folder = Path(mkdtemp(dir=own))
        held = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        locks.take(held)
    environment = _environment(folder)
    for path in environment.values():
        Path(path).mkdir()
    try:
        works = _control(control, "-d", environment=environment) and serves({**os.environ, **environment})
        if not works:
            warn(f"NVIDIA's Multi-Process Service does not work here: {IN_TURNS}")
        yield environment if works else {}
    finally:
        _end(control, folder)
        os.close(held)


OWNER = "owner"
"""The file that a command locks as long as it uses its daemon."""


def _environment(folder: Path) -> dict[str, str]:
    return {PIPE: str(folder / "pipe"), LOG: str(folder / "log")}


def _end_if_left(control: str, folder: Path) -> None:
    """End the daemon of a command that is dead."""
    try:
        handle = os.open(folder / OWNER, os.O_RDWR)
    except FileNotFoundError:  # it has just ended
        return
    if locks.take(handle):
        _end(control, folder)
    os.close(handle)


def _end(control: str, folder: Path) -> None:
    _control(control, environment=_environment(folder), stdin="quit\n")
    shutil.rmtree(folder, ignore_errors=True)


def _control(control: str, *words: str, environment: Mapping[str, str], stdin: str = "") -> bool:
    """Run the control tool; return whether it succeeded."""
    null = subprocess.DEVNULL  # the daemon keeps the handles it inherits: a pipe would never end
    try:
        done = subprocess.run(
            [control, *words],
            env={**os.environ, **environment},
            input=stdin,
            text=True,
            stdout=null,
            stderr=null,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
