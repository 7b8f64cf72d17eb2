"""Turns an exception into one line on stderr and an exit code; users see no traceback.

An unexpected exception is a bug: its line names the type, and `CALIBRANT_DEBUG=1` prints the traceback as well.
"""

from __future__ import annotations

import errno
import os
import traceback

from calibrant.cli.console import block, say
from calibrant.errors import CalibrantError, disk_full, out_of_memory

DEBUG = "CALIBRANT_DEBUG"
LONGEST = 1200
"""Characters of the line. A message may quote a cell or a schema; longer ones lose their middle."""

_WRONG_PATH = {
    errno.EACCES: "no permission to use {}; choose another place",
    errno.EPERM: "no permission to use {}; choose another place",
    errno.ENAMETOOLONG: "the name {} is too long for this system; use a shorter one",
    errno.ELOOP: "{} is a link that leads back to itself; pass a file",
    errno.ENOENT: "{}: no such file or folder",
    errno.ENOTDIR: "{}: a part of this path is a file, not a folder",
    errno.EISDIR: "{} is a folder; pass a file",
}
"""System error → what is wrong with the path that the user named."""


def report(error: Exception) -> int:
    """Print the line on stderr, with CALIBRANT_DEBUG=1 also the traceback, and return the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":  # typer exports no name for it; its message is the help
        block(error.ctx.get_help())  # type: ignore[attr-defined]
        return 0
    if os.environ.get(DEBUG, "") not in ("", "0"):
        traceback.print_exception(error)
    message, code = explain(error)
    # in our own messages a line break is part of a name and is escaped; other messages may have several lines
    line = message if isinstance(error, CalibrantError) else " ".join(message.split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST * 2 // 3]} … {line[-LONGEST // 3 :]}"
    say(f"calibrant: {line}", err=True)
    return code


def explain(error: Exception) -> tuple[str, int]:
    """The message and the exit code."""
    if isinstance(error, CalibrantError):
        return str(error), error.exit_code
    if hasattr(error, "format_message"):  # a usage error; typer's versions share no public base class
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
        if disk_full(error) and error.filename:
            return f"{error.strerror}: '{error.filename}'; make room there, and give the same command again", 1
        return str(error) or type(error).__name__, 1
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"unexpected {what}; set {DEBUG}=1 for the traceback", 1
