"""On a GPU, captured steps give the losses and weights of eager ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calibrant.errors import InputError
from calibrant.training import How, load, read, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = How(device="cuda", quiet=True)
BASE = ["epochs=3", "network.hidden=[64]", "batch=60"]


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "settings",
    [
        ["optimiser={name='sgd', lr=0.05, nesterov=true, weight_decay=1e-3}", "schedule={name='cosine', warmup=1}"],
        ["optimiser={name='adam', lr=0.002}"],
        ["ema=0.9", "members=2", "loss=focal", "penalties=['mmce']"],
        ["transforms=['mixup']", "targets=adals"],
        ["network.dropout=0.3"],
        ["precision=bfloat16"],
    ],
)
def test_captured_is_eager(tmp_path: Path, settings: list[str]) -> None:
    for engine in ("eager", "graph"):
        train(read("digits/cross_entropy", [*BASE, *settings, f"engine={engine}"]), tmp_path / engine, CUDA)
    loose = any("dropout" in s or "bfloat16" in s for s in settings)  # masks are drawn elsewhere; sums are rounded
    assert losses(tmp_path / "graph") == pytest.approx(losses(tmp_path / "eager"), rel=0.25 if loose else 1e-3)
    if not loose:
        eager, graph = load(tmp_path / "eager").members, load(tmp_path / "graph").members
        for a, b in zip(eager[0].parameters(), graph[0].parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=2e-3, rtol=1e-2)


def test_a_penalty_with_a_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keeps a history"):
        train(read("digits/cross_entropy", [*BASE, "penalties=['ranking']", "engine=graph"]), tmp_path / "r", CUDA)


def test_a_gpu_run_resumes(tmp_path: Path) -> None:
    recipe = read("digits/cross_entropy", [*BASE, "engine=graph"])
    train(recipe, tmp_path / "r", CUDA)
    (tmp_path / "r" / "checkpoint" / "00003.json").unlink()
    first = losses(tmp_path / "r")
    train(recipe, tmp_path / "r", CUDA)
    assert losses(tmp_path / "r") == pytest.approx(first, rel=1e-2)
