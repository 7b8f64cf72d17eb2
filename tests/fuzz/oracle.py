"""A case, how it is run, and what must be true of its result."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from calibrant.cli import run

LIMIT = 120
"""Seconds after which a case counts as hanging."""


NOTICES = ("note", "inputs")
"""Beginnings of lines on stderr that are not errors."""


@dataclass(frozen=True)
class End:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Case:
    """A command, its correct exit codes, and a further check that returns a complaint or None."""

    kind: str
    what: str
    argv: list[str]
    codes: tuple[int, ...]
    check: Callable[[End], str | None] = lambda end: None
    resumes: bool = False  # goes on in a folder that is already in `out`


class Hangs(BaseException):
    """An exception that no handler of `Exception` catches."""


def _hangs(*_: object) -> None:
    raise Hangs


@contextlib.contextmanager
def _guarded(folder: Path) -> Iterator[None]:
    """Run the command in this folder, with a time limit and with the warnings that a user would get."""
    before, handler = Path.cwd(), signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(LIMIT)
    try:
        os.chdir(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            for silent in (DeprecationWarning, ImportWarning, PendingDeprecationWarning, ResourceWarning):
                warnings.simplefilter("ignore", silent)
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        os.chdir(before)


def call(argv: list[str], folder: Path) -> End:
    out, err = io.StringIO(), io.StringIO()
    with _guarded(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(argv)
    return End(code, out.getvalue(), err.getvalue())


def complaint(case: Case, root: Path, folder: Path) -> str | None:
    """What is wrong with the result of this case; None if nothing is. Outputs go to `folder/out`."""
    (folder / "out").mkdir(exist_ok=True)
    before = fingerprint(root, folder / "out")
    try:
        end = call(case.argv, folder)
    except Hangs:
        return f"hangs for {LIMIT} s"
    except (Exception, SystemExit) as error:
        return f"traceback: {type(error).__name__}: {error}"
    touched = _touched(before, fingerprint(root, folder / "out"))
    left = None if case.resumes else _left(end, folder)
    return _said(case, end) or touched or left or case.check(end)


def _said(case: Case, end: End) -> str | None:
    if "Traceback" in end.err or "unexpected" in end.err:
        return f"traceback: {end.err.strip()}"
    if end.code not in case.codes:
        return f"exit code {end.code}, not {' or '.join(map(str, case.codes))}: {end.err.strip()}"
    lines = [line for line in end.err.splitlines() if not line.startswith(NOTICES)]
    if case.argv[0] == "train":  # tells of its epochs and checkpoints
        lines = [line for line in lines if line.startswith("calibrant: ")]
    if len(lines) != (end.code != 0):
        return f"{len(lines)} lines on stderr: {end.err.strip()}"
    if end.code and end.out and not case.resumes:
        return f"stdout is not empty: {end.out.strip()}"
    odd = {c for c in end.out + end.err if unicodedata.category(c) == "Cc" and c != "\n"}
    return f"control characters {sorted(odd)!r} reach the terminal" if odd else None


def _touched(before: dict[str, str], after: dict[str, str]) -> str | None:
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return f"touched {', '.join(changed)}" if changed else None


def _left(end: End, folder: Path) -> str | None:
    left = sorted(os.listdir(folder / "out"))
    return f"left {', '.join(left)} in spite of exit code {end.code}" if end.code and left else None


def fingerprint(root: Path, skip: Path) -> dict[str, str]:
    """Path → size, time and kind of everything below `root` except `skip`; links are not followed."""
    found = {}
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if Path(place) / name != skip]
        for name in files:
            at = os.lstat(os.path.join(place, name))
            found[os.path.join(place, name)] = f"{at.st_mode} {at.st_size} {at.st_mtime_ns} {at.st_ino}"
    return found
