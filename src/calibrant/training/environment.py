"""Where and with what a number was made: versions, device, commit. Goes beside every run and into every cell."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("calibrant", "torch", "numpy", "lightning", "safetensors")


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions, machine, threads and commit; no names of hosts, users or folders."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "device": device_name(device),
        "cuda": torch.version.cuda if torch.device(device).type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }


def device_name(device: torch.device | str) -> str:
    where = torch.device(device)
    return torch.cuda.get_device_name(where) if where.type == "cuda" else where.type


def commit() -> str | None:
    """The commit of the source that is running, with `+` when its files differ; None outside a checkout.

    A copy of a checkout without its history says it by the environment variable CALIBRANT_COMMIT.
    """
    if said := os.environ.get("CALIBRANT_COMMIT"):
        return said
    here = Path(__file__).resolve().parent
    head = _git(here, "rev-parse", "HEAD")
    if head is None:
        return None
    changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
    return head + ("+" if changed else "")


def command(argv: Sequence[str] | None = None) -> str:
    """The command line that is running, with the program's name instead of its path."""
    words = list(sys.argv if argv is None else argv)
    return " ".join(
        ["calibrant" if Path(words[0]).stem in ("__main__", "calibrant") else Path(words[0]).name, *words[1:]]
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
