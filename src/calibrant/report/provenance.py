"""Which calibrant made a report, and when."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class Provenance:
    version: str
    commit: str | None
    when: str


def provenance() -> Provenance:
    """Version, commit (of a checkout; an installed package has none), time in UTC (SOURCE_DATE_EPOCH is respected)."""
    from calibrant import __version__

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdigit() else datetime.now(UTC)
    return Provenance(__version__, commit(), now.strftime("%Y-%m-%d %H:%M UTC"))


def made() -> dict[str, str | None]:
    """For JSON: the command line that printed it, the version and the commit; no time, so that it can be compared."""
    from calibrant import __version__

    return {"command": command(), "version": __version__, "commit": commit()}


def command() -> str:
    """The command line of this process, as a shell would take it."""
    return shlex.join(["calibrant", *sys.argv[1:]])


def commit(folder: Path | None = None) -> str | None:
    """The short commit of the checkout that the package runs from, `+` when its files were changed since."""
    root = folder or Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        short = _git(root, "rev-parse", "--short=12", "HEAD")
        return short + ("+" if _git(root, "status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.SubprocessError):
        return None  # no git here: the version stands alone


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
