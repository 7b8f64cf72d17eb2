"""NVIDIA's Multi-Process Service: processes side by side then work on one GPU at the same time, instead of in turns.

The daemon has a pipe and a log folder of its own, so that it meddles with no other, and ends with the `with`. Whether
a process really works under it is tried first: in a container without the rights it starts, and then serves nobody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

CONTROL = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SECONDS = 60


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
    if control is None or PIPE in os.environ:
        yield {name: os.environ[name] for name in (PIPE, LOG) if name in os.environ}
        return
    with TemporaryDirectory(prefix="mps-") as folder:  # a short name: sockets have at most 107 letters
        own = {name: str(Path(folder, kind)) for name, kind in ((PIPE, "pipe"), (LOG, "log"))}
        for path in own.values():
            Path(path).mkdir()
        environment = {**os.environ, **own}
        try:
            works = _asked(control, "-d", environment=environment) and serves(environment)
            yield own if works else {}
        finally:
            _asked(control, environment=environment, says="quit\n")


def _asked(control: str, *words: str, environment: Mapping[str, str], says: str = "") -> bool:
    null = subprocess.DEVNULL  # a daemon keeps what it inherits: a pipe would never end
    try:
        done = subprocess.run(
            [control, *words], env=environment, input=says, text=True, stdout=null, stderr=null, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
