"""On a GPU: captured training goes with what happens between its steps: levels attacked anew, CCAT, lock-step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calibrant.training import How, load, read, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = How(device="cuda", quiet=True)
SMALL = ["epochs=4", "network.hidden=[64]", "batch=60"]
LEVELS = "targets={name='ar_adals', alpha=0.02, levels=5, refresh_after=[2]}"
CCAT = "transforms=[{name='ccat', epsilon=0.01, attack={name='pgd', iterations=2, alpha=0.025}}]"


@pytest.mark.parametrize("settings", [[LEVELS], [LEVELS, "members=2"], [CCAT]], ids=["on the fly", "lock-step", "ccat"])
def test_captured_is_eager(tmp_path: Path, settings: list[str]) -> None:
    for engine in ("eager", "graph"):
        recipe = read("digits/cross_entropy", [*SMALL, *settings, f"engine={engine}"])
        train(recipe, tmp_path / engine, CUDA)
    first, second = (
        [json.loads(line)["loss"] for line in (tmp_path / engine / "log.jsonl").read_text().splitlines()]
        for engine in ("eager", "graph")
    )
    assert second == pytest.approx(first, rel=2e-2)
    for a, b in zip(
        load(tmp_path / "eager").members[0].parameters(), load(tmp_path / "graph").members[0].parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-2, rtol=5e-2)
