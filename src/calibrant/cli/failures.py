"""An exception on the command line: one line for people and an exit code, never a traceback.

An unexpected exception is a bug: its line has the type, and `CALIBRANT_DEBUG=1` prints the
traceback as well.
"""

from __future__ import annotations

import errno
import os
import traceback

from calibrant.cli.console import block, say
from calibrant.errors import CalibrantError, out_of_memory

DEBUG = "CALIBRANT_DEBUG"
LONGEST = 1200
"""Characters of the line. A message may quote a cell or a schema; the middle of a longer one is left out."""

_WRONG_PATH = {
    errno.EACCES: "no permission to use {}; choose another place",
    errno.EPERM: "no permission to use {}; choose another place",
    errno.ENAMETOOLONG: "the name {} is too long for this system; use a shorter one",
    errno.ELOOP: "{} is a link that leads back to itself; pass a file",
    errno.ENOENT: "{}: no such file or folder",
    errno.ENOTDIR: "{}: a part of this path is a file, not a folder",
    errno.EISDIR: "{} is a folder; pass a file",
}
"""What is wrong with a path that a user named."""


def report(error: Exception) -> int:
    """Print the line (and with CALIBRANT_DEBUG=1 the traceback) on stderr; the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":  # typer has no public name for it; its message is the help
        block(error.ctx.get_help())  # type: ignore[attr-defined]
        return 0
    if os.environ.get(DEBUG, "") not in ("", "0"):
        traceback.print_exception(error)
    said, code = explain(error)
    # our own messages are one line, and a line break in them is part of a name; others' may have several
    line = said if isinstance(error, CalibrantError) else " ".join(said.split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST * 2 // 3]} … {line[-LONGEST // 3 :]}"
    say(f"calibrant: {line}", err=True)
    return code


def explain(error: Exception) -> tuple[str, int]:
    """(what to say, exit code)."""
    if isinstance(error, CalibrantError):
        return str(error), error.exit_code
    if hasattr(error, "format_message"):  # typer's usage errors share no public base class across its versions
        at = getattr(getattr(error, "ctx", None), "command_path", "calibrant")
        return f"{error.format_message()} (see `{at} --help`)", 2
    if out_of_memory(error):
        return (
            f"out of memory ({str(error) or 'MemoryError'}); use fewer items or smaller batches, or stream Parquet",
            1,
        )
    if isinstance(error, OSError):
        if error.errno in _WRONG_PATH:
            return _WRONG_PATH[error.errno].format(error.filename or error), 2
        return str(error) or type(error).__name__, 1  # a full disk, say: it failed, and there is nothing to debug
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"unexpected {said}; set {DEBUG}=1 for the traceback", 1
