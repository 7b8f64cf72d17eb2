"""The Python of docs/smoothing.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "smoothing.md"


def test_every_python_block_runs(capsys) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)), {})
    said = capsys.readouterr().out
    places = ("before layer2.0", "before layer3.0", "before layer4.0", "after layer4")
    assert all(f"{place} Smooth" in said for place in places)
