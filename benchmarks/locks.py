"""Who is at a unit of work: an advisory lock on a file, which the kernel takes back when its process ends, however.

So what a killed process held is free at once, whatever process has its number now, and of several that want it one gets
it. The file names its owner's process, for people and for whoever waits for them.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

LOOKS, APART = 3, 0.01  # another process may hold it for a moment just to look (`taken`)

_held: dict[Path, int] = {}


def claimed(lock: Path) -> bool:
    """Whether this process now owns the lock, and did not before."""
    lock = lock.absolute()
    if lock in _held:
        return False
    lock.parent.mkdir(parents=True, exist_ok=True)
    for look in range(LOOKS):
        time.sleep(APART if look else 0)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(lock), os.fstat(handle)):
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                _held[lock] = handle
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(handle)  # somebody has it, or had it and has just removed the file that we opened
    return False


def taken(lock: Path) -> bool:
    """Whether any process, this one too, owns the lock now."""
    if lock.absolute() in _held:
        return True
    try:
        handle = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def released(lock: Path) -> None:
    """Give back what this process claimed; its file goes first, so that nobody claims one that is about to go."""
    handle = _held.pop(lock.absolute(), None)
    if handle is not None:
        lock.unlink(missing_ok=True)
        os.close(handle)
