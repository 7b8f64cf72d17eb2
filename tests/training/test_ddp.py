"""Two gloo processes that share each batch are one process: same losses, same weights, on a net without BatchNorm."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed

from calibrant.training import How, load, read, train

# 807 training items in batches of 61: the last batch of 14 and the others of 61 split unevenly (31 + 30)
SETTINGS = ["epochs=2", "batch=61", "network={name='mlp', hidden=[32], batch_norm=false}", "optimiser.name=sgd"]

# What a launcher does: every process is told its rank. Forked, so that imports are paid for once.
TWO = """
import os, sys
import lightning.fabric, sklearn.datasets, torch
torch.set_num_threads(1)
from calibrant.cli import run
child = os.fork()
os.environ["LOCAL_RANK"] = "1" if child == 0 else "0"
code = run(sys.argv[1:])
if child == 0:
    os._exit(code)
sys.exit(code or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="starts its processes by fork; this system cannot")
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch was built without gloo")
def test_two_processes_give_the_loss_of_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    train(read("digits/smoothing", SETTINGS), one, How(device="cpu", quiet=True))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [word for s in SETTINGS for word in ("--set", s)]
    arguments = ["train", "digits/smoothing", "-o", str(two), *options, "--device", "cpu", "--devices", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", TWO, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["test"]["n"] == 450  # one process speaks
    rows = [[json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] for run in (one, two)]
    assert len(rows[0]) == 2
    for a, b in zip(*rows, strict=True):
        assert abs(a["loss"] - b["loss"]) < 1e-6
        assert a["train_accuracy"] == pytest.approx(b["train_accuracy"], abs=2 / 807)
    for p, q in zip(load(one).members[0].parameters(), load(two).members[0].parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)
