"""How the tests of the command line make predictions and run commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from calibrant.cli import run

Refused = Callable[..., None]
"""The fixture `refused`."""


def make(path: Path, seed: int, split: str, k: int = 3, n: int = 900) -> Path:
    """Write predictions whose right temperature is 3."""
    g = np.random.default_rng(seed)
    z = 1.5 * g.normal(size=(n, k))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    y = np.array([g.choice(k, p=row) for row in p])
    np.savez(path, logits=(3 * z).astype(np.float32), labels=y, split=split)
    return path


def call(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Run a command and return its exit code, stdout and stderr."""
    code = run([str(a) for a in argv])
    out = capsys.readouterr()
    return code, out.out, out.err
