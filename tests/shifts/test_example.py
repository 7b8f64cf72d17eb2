"""The examples of docs/shifts.md run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "shifts.md"


def test_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    seen: dict[str, Any] = {}
    exec("\n".join(blocks), seen)
    assert seen["foggy"].shape == seen["images"].shape and len(seen["suite"]) == 75
    assert seen["frames"].shape == (31, 8, 3, 32, 32) and 0 <= float(seen["steady"]) <= 1
    assert seen["curve"].shape == (10,)
