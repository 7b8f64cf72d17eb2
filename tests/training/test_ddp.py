"""Two gloo processes that share each batch get the losses and weights of one process (without BatchNorm)."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed

from calibrant.training import How, load, read, train
from tests.killed import ENDED, begin

# 807 training items in batches of 61: the last batch of 14 and the others of 61 split unevenly (31 + 30)
SETTINGS = ["epochs=2", "batch=61", "network={name='mlp', hidden=[32], batch_norm=false}", "optimiser.name=sgd"]

# What a launcher does: every process is told its rank.
ONE_OF_TWO = """
import contextlib, os, sys
rank, port, out, *words = sys.argv[1:]
os.environ |= {"LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
from calibrant.cli import run
with open(out, "w") as said, contextlib.redirect_stdout(said):
    assert run(words) == 0
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch was built without gloo")
def test_two_processes_give_the_loss_of_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    train(read("digits/smoothing", SETTINGS), one, How(device="cpu", quiet=True))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [word for s in SETTINGS for word in ("--set", s)]
    arguments = ["train", "digits/smoothing", "-o", str(two), *options, "--device", "cpu", "--devices", "2", "--json"]
    said = [tmp_path / f"said-{rank}" for rank in (0, 1)]
    started = [begin(ONE_OF_TWO, str(rank), str(port), str(said[rank]), *arguments) for rank in (0, 1)]
    assert [heard.recv() for _, heard in started] == [ENDED, ENDED]
    assert json.loads(said[0].read_text())["metrics"]["test"]["n"] == 450
    assert said[1].read_text() == "", "one process speaks"
    rows = [[json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] for run in (one, two)]
    assert len(rows[0]) == 2
    for a, b in zip(*rows, strict=True):
        assert abs(a["loss"] - b["loss"]) < 1e-6
        assert a["train_accuracy"] == pytest.approx(b["train_accuracy"], abs=2 / 807)
    for p, q in zip(load(one).members[0].parameters(), load(two).members[0].parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)
