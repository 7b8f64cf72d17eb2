"""kill -9 at random moments: the rerun ends in the same weights, bit for bit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from calibrant.training import How, read, train
from calibrant.training.checkpoint import latest
from tests.killed import ENDED, begin

SETTINGS = [
    "epochs=12",
    "network={name='mlp', hidden=[64], dropout=0.3}",
    "targets={name='adals', alpha=0.1}",
    "penalties=['ranking']",
    "ema=0.9",
    "members=2",
    "schedule={name='cosine', warmup=1}",
]

KILLER = """
import os, random, signal, sys, time, traceback
from calibrant.training import How, read
from calibrant.training.run import train

recipe, out = read("digits/cross_entropy", eval(sys.argv[2])), sys.argv[1]


def begin(folder):
    child = os.fork()
    if child == 0:
        try:
            train(recipe, folder, How(device="cpu", quiet=True))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child


start = time.monotonic()
os.waitpid(begin(out + "-timed"), 0)
alone = time.monotonic() - start  # what one run takes on this machine, so that kills fall inside it
rng, kills = random.Random(int(sys.argv[3])), 0
while True:
    child = begin(out)
    # two early kills for sure, then anywhere, then let it end
    patience = time.monotonic() + (rng.uniform(0.0, (0.3 if kills < 2 else 0.8) * alone) if kills < 6 else 1e9)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done or time.monotonic() > patience:
            break
        time.sleep(0.002)
    if done:
        open(out + "-kills", "w").write(str(kills))
        assert status == 0
        break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kills += 1
"""


def final(run: Path) -> dict[str, torch.Tensor]:
    found = latest(run / "checkpoint", pytest.fail)
    assert found is not None and found.epoch == 12
    return dict(found.tensors)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process; this system cannot fork")
def test_killed_at_random_moments_ends_in_the_same_weights(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(read("digits/cross_entropy", SETTINGS), tmp_path / "whole", How(device="cpu", quiet=True))
    finally:
        torch.set_num_threads(threads)
    _, heard = begin(KILLER, str(tmp_path / "killed"), repr(SETTINGS), "5")
    assert heard.recv() == ENDED
    assert int((tmp_path / "killed-kills").read_text()) >= 2, "too few kills to mean anything"
    whole, killed = final(tmp_path / "whole"), final(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    assert any(k.startswith("penalty.1.0") for k in whole) and any(k.startswith("policy") for k in whole)
    for name, value in whole.items():
        assert torch.equal(value, killed[name]), name
    assert (tmp_path / "whole" / "test.npz").read_bytes() == (tmp_path / "killed" / "test.npz").read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in rows if "epoch" in r] == list(range(1, 13))


def test_a_damaged_checkpoint_is_skipped_with_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = read("digits/cross_entropy", ["epochs=4", "network.hidden=[16]"])
    train(recipe, tmp_path / "a", How(device="cpu", quiet=True))
    whole = (tmp_path / "a" / "checkpoint" / "00004.safetensors").read_bytes()
    (tmp_path / "a" / "checkpoint" / "00004.safetensors").write_bytes(whole[:-100])
    train(recipe, tmp_path / "a", How(device="cpu", quiet=True))
    assert "truncated or edited" in capsys.readouterr().err
    assert (tmp_path / "a" / "checkpoint" / "00004.safetensors").read_bytes() == whole
    assert "truncated" in (tmp_path / "a" / "log.jsonl").read_text()
