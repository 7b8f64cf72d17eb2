"""Locks on folders: one command at a time works in a folder, and only the first of its processes writes.

The kernel releases a lock when its process ends, so nothing has to be cleaned up after a kill. The locks are made by
`flock`. They hold between machines if the file system supports that (docs/bench.md names some). Where a file system has
no locks at all, a warning says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibrant.errors import FileError, warn


class InUse(FileError):
    """Another process works in the folder."""


LOCK = ".lock"
RETRY_SECONDS = 0.02
"""Seconds between two tries while waiting for a lock."""


RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
"""Environment variables by which Lightning and torchrun number processes that train together."""


def first_process() -> bool:
    """Whether this process writes and prints. Of several that train together (`--devices 2`), only the first does."""
    ranks = [os.environ.get(name, "0") for name in RANKS]
    if int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "RAY_RAYLET_PID" not in os.environ:  # a worker of Ray is alone
        ranks.append(os.environ.get("SLURM_PROCID", "0"))
    return all(rank == "0" for rank in ranks)


@contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Create the folder and lock it while the block runs; if the block writes nothing, remove it again.

    If another process holds the lock, that is an error; with `wait` (for short blocks) this process waits for it."""
    if not first_process():
        yield
        return
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    handle = _held(folder, wait)
    try:
        yield
    finally:
        # removed before the lock is released, so that nobody locks a file that is about to be removed
        (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)
        for place in new:
            try:
                place.rmdir()
            except OSError:  # there is something in it
                break


def _held(folder: Path, wait: bool) -> int:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:  # the other process has ended and removed the folder
            continue
        if not take(handle):
            owner = os.read(handle, 20).decode() or "another"
            os.close(handle)
            if wait:
                time.sleep(RETRY_SECONDS)
                continue
            raise InUse(f"{folder} is in use by process {owner}; wait until it ends, or name another folder")
        try:
            if os.path.samestat(os.stat(folder / LOCK), os.fstat(handle)):
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # its owner has ended and removed it


def take(handle: int) -> bool:
    """Try to take the lock, and return whether this process has it. Without support for locks, it always does."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        warn(
            f"the file system of {_name(handle)} has no locks ({error.strerror}): run one command at a time there, or "
            "give each a folder of its own and `calibrant bench merge` the results"
        )
    return True


def _name(handle: int) -> str:
    """The path of an open file, if the system knows it."""
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return "this folder"
