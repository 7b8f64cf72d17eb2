"""Resuming: a training that was killed (SIGKILL) ends in the same weights, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calibrant.training import How, read, train
from calibrant.training.checkpoint import latest
from tests.killed import leave

QUIET = How(device="cpu", quiet=True)
SETTINGS = [
    "epochs=6",
    "network={name='mlp', hidden=[64], dropout=0.3}",
    "targets={name='adals', alpha=0.1}",
    "penalties=['ranking']",
    "ema=0.9",
    "members=2",
    "schedule={name='cosine', warmup=1}",
]
TRAINS = """
import sys
from calibrant.training import How, read, train
train(read("digits/cross_entropy", eval(sys.argv[2])), sys.argv[1], How(device="cpu", quiet=True))
"""


def final(run: Path) -> dict[str, torch.Tensor]:
    found = latest(run / "checkpoint", pytest.fail)
    assert found is not None and found.epoch == 6
    return dict(found.tensors)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(read("digits/cross_entropy", SETTINGS), run, QUIET)
    return run


@pytest.mark.parametrize("kills", [(2,), (5, 6), (12, 1)])
def test_killed_trainings_end_in_the_same_weights(whole: Path, tmp_path: Path, kills: tuple[int, ...]) -> None:
    """Killed at the k-th file that is written: a record, a checkpoint's tensors, its JSON."""
    run = tmp_path / "run"
    for k in kills:
        leave(TRAINS, k, str(run), repr(SETTINGS))
    train(read("digits/cross_entropy", SETTINGS), run, QUIET)
    expected, found = final(whole), final(run)
    assert expected.keys() == found.keys()
    assert any(k.startswith("penalty.1.0") for k in expected) and any(k.startswith("policy") for k in expected)
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    assert (whole / "test.npz").read_bytes() == (run / "test.npz").read_bytes()
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in rows if "epoch" in r] == list(range(1, 7))


def test_a_damaged_checkpoint_is_skipped_with_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = read("digits/cross_entropy", ["epochs=4", "network.hidden=[16]"])
    train(recipe, tmp_path / "a", QUIET)
    tensors = tmp_path / "a" / "checkpoint" / "00004.safetensors"
    intact = tensors.read_bytes()
    tensors.write_bytes(intact[:-100])
    train(recipe, tmp_path / "a", QUIET)
    assert "truncated or edited" in capsys.readouterr().err
    assert tensors.read_bytes() == intact
    assert "truncated" in (tmp_path / "a" / "log.jsonl").read_text()
