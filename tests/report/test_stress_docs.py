"""docs/stress.md as it stands: its Python runs, its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from calibrant.cli import run

PAGE = (Path(__file__).parents[2] / "docs" / "stress.md").read_text("utf-8")


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S)), {})
    assert (tmp_path / "ece.png").stat().st_size > 1000


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer epochs and items, so that it takes seconds."""
    monkeypatch.chdir(tmp_path)
    small = {
        "train": ["--set", "epochs=2"],
        "stress": ["--limit", "60", "--types", "fog", "--calibrators", "temperature"],
    }
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "calibrant"
        assert run([*words[1:], *small[words[1]], "--device", "cpu"]) == 0, line
    assert "stress.html" in [p.name for p in tmp_path.iterdir()] and len(lines) == 4
