"""Two gloo processes that share each batch are one process: same losses, same weights, on a net without BatchNorm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed

from calibrant.train import How, load, read, train

# 807 training items in batches of 61: the last batch of 14 and the others of 61 split unevenly (31 + 30)
SETTINGS = ["epochs=2", "batch=61", "network={name='mlp', hidden=[32], batch_norm=false}", "optimiser.name=sgd"]


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch was built without gloo")
def test_two_processes_give_the_loss_of_one(tmp_path: Path) -> None:
    one = tmp_path / "one"
    train(read("digits/smoothing", SETTINGS), one, How(device="cpu", quiet=True))
    options = [word for s in SETTINGS for word in ("--set", s)]
    command = [
        sys.executable,
        "-m",
        "calibrant.cli",
        "train",
        "digits/smoothing",
        "-o",
        str(tmp_path / "two"),
        *options,
    ]
    done = subprocess.run(
        [*command, "--device", "cpu", "--devices", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["test"]["n"] == 450  # one process speaks
    rows = [[json.loads(line) for line in (run / "log.jsonl").open()] for run in (one, tmp_path / "two")]
    for a, b in zip(*rows, strict=True):
        assert abs(a["loss"] - b["loss"]) < 1e-6
        assert a["train_accuracy"] == pytest.approx(b["train_accuracy"], abs=2 / 807)
    for p, q in zip(load(one).members[0].parameters(), load(tmp_path / "two").members[0].parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)
