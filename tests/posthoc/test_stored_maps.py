"""Maps of every kind that version 0.1 saved still load and give the same numbers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import calibrant
from calibrant.posthoc import load

STORED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("maps_0_1.json").read_text("utf-8"))
LOGITS = [[0.0, 1.0, 2.0], [3.0, -1.0, 0.25], [-2.0, -2.5, 4.0], [50.0, 0.0, -50.0], [0.0, -torch.inf, 1.0]]
FEATURES = [[0.0, 0.0], [1.0, -1.0], [2.0, 0.5], [-1.0, 1.0], [0.1, 0.2]]


@pytest.mark.parametrize("method", STORED)
def test_a_map_of_version_0_1_gives_what_it_gave(method: str, tmp_path: Path) -> None:
    stored = STORED[method]
    (tmp_path / "map.json").write_text(stored["map.json"], "utf-8")
    (tmp_path / "map.safetensors").write_bytes(base64.b64decode(stored["map.safetensors"]))
    fitted = load(tmp_path)
    logits = torch.tensor(LOGITS, dtype=torch.float64)
    p = calibrant.predictions(logits, [0] * len(logits), features=torch.tensor(FEATURES, dtype=torch.float64))
    after = fitted.predictions(p)
    assert fitted.method == method and after.logits is not None
    wanted = torch.tensor([[float(v) for v in row] for row in stored["logits"]], dtype=torch.float64)
    # another processor may round exp and log differently in the last digit
    torch.testing.assert_close(after.logits, wanted, rtol=1e-12, atol=1e-12)
    if stored["confidence"] is not None:
        assert after.confidence is not None
        wanted = torch.tensor([float(v) for v in stored["confidence"]], dtype=torch.float64)
        torch.testing.assert_close(after.confidence, wanted, rtol=1e-12, atol=1e-12)
