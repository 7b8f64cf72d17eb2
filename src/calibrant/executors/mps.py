"""NVIDIA's Multi-Process Service: processes side by side then work on one GPU at the same time, instead of in turns.

The daemon has a pipe and a log folder of its own, so that it meddles with no other, and ends with the `with`. One whose
command was killed goes on; the next command finds its folder, which nobody holds any more, and ends it. Whether a
process really works under a daemon is tried first: in a container without the rights it starts, and then serves nobody.
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
    """The environment in which processes share the device. Without the tool, or where the user has set a daemon up,
    nothing is done."""
    control = shutil.which(CONTROL)
    if PIPE in os.environ:
        yield {name: os.environ[name] for name in (PIPE, LOG) if name in os.environ}
        return
    if control is None:
        warn(f"there is no {CONTROL} here: {IN_TURNS}")
        yield {}
        return
    own = Path(gettempdir(), f"calibrant-mps-{os.getuid()}")  # a short name: sockets have at most 107 letters
    own.mkdir(mode=0o700, exist_ok=True)
    if own.stat().st_uid != os.getuid():  # somebody else's
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
        works = _asked(control, "-d", environment=environment) and serves({**os.environ, **environment})
        if not works:
            warn(f"NVIDIA's Multi-Process Service does not work here: {IN_TURNS}")
        yield environment if works else {}
    finally:
        _end(control, folder)
        os.close(held)


OWNER = "owner"
"""The file that the command holds whose daemon it is."""


def _environment(folder: Path) -> dict[str, str]:
    return {PIPE: str(folder / "pipe"), LOG: str(folder / "log")}


def _end_if_left(control: str, folder: Path) -> None:
    """End a daemon whose command is dead."""
    try:
        handle = os.open(folder / OWNER, os.O_RDWR)
    except FileNotFoundError:  # it has just ended
        return
    if locks.take(handle):
        _end(control, folder)
    os.close(handle)


def _end(control: str, folder: Path) -> None:
    _asked(control, environment=_environment(folder), says="quit\n")
    shutil.rmtree(folder, ignore_errors=True)


def _asked(control: str, *words: str, environment: Mapping[str, str], says: str = "") -> bool:
    null = subprocess.DEVNULL  # a daemon keeps what it inherits: a pipe would never end
    try:
        done = subprocess.run(
            [control, *words],
            env={**os.environ, **environment},
            input=says,
            text=True,
            stdout=null,
            stderr=null,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
