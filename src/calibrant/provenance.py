"""Where a number or a report comes from: version, commit, command line and time."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Provenance:
    version: str
    commit: str | None
    when: str


def provenance() -> Provenance:
    """The version, the short commit, and the time in UTC (SOURCE_DATE_EPOCH is respected)."""
    from calibrant import __version__

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdigit() else datetime.now(UTC)
    return Provenance(__version__, commit(short=True), now.strftime("%Y-%m-%d %H:%M UTC"))


def made() -> dict[str, str | None]:
    """The command line, version and commit, for JSON. The time is left out, so that two outputs can be compared."""
    from calibrant import __version__

    return {"command": command(), "version": __version__, "commit": commit(short=True)}


def command(argv: Sequence[str] | None = None) -> str:
    """The running command line, quoted for a shell, with the program's name instead of its path."""
    words = list(sys.argv if argv is None else argv)
    program = Path(words[0])
    return shlex.join(["calibrant" if program.stem in ("__main__", "calibrant") else program.name, *words[1:]])


def commit(*, short: bool = False) -> str | None:
    """The commit of the running source, with `+` if its files were changed; None outside a checkout.

    For a copy without its history, set the environment variable CALIBRANT_COMMIT.
    """
    if given := os.environ.get("CALIBRANT_COMMIT"):
        return given
    head, changed = _checkout()
    return None if head is None else (head[:12] if short else head) + changed


@cache
def _checkout() -> tuple[str | None, str]:
    """The commit, and `+` if files were changed. It is read once, because the loaded source does not change."""
    here = Path(__file__).resolve().parent
    if not (here.parents[1] / ".git").exists():  # an installed package may be inside another project's checkout
        return None, ""
    changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", str(here))
    return _git(here, "rev-parse", "HEAD"), "+" if changed else ""


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
