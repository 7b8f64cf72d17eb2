"""Checkpoints: the last two are kept, and any damage is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from calibrant.errors import FileError
from calibrant.training.checkpoint import Checkpoint, latest, save
from calibrant.training.epochs import keep_weights, kept_weights


def sample(epoch: int) -> Checkpoint:
    tensors = {"w": torch.arange(6.0).reshape(2, 3) + epoch, "n": torch.tensor(epoch), "half": torch.ones(3).bfloat16()}
    return Checkpoint(epoch, tensors, {"history": [{"loss": 0.1, "none": None}], "word": "ä"})


def test_round_trip_bit_for_bit_and_two_are_kept(tmp_path: Path) -> None:
    assert latest(tmp_path, pytest.fail) is None and latest(tmp_path / "nothing", pytest.fail) is None
    for epoch in (1, 2, 3):
        save(tmp_path, sample(epoch))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"0000{e}.{s}" for e in (2, 3) for s in ("json", "safetensors")
    ]
    found = latest(tmp_path, pytest.fail)
    assert found is not None and found.epoch == 3 and found.plain == sample(3).plain
    for name, t in sample(3).tensors.items():
        assert torch.equal(found.tensors[name], t) and found.tensors[name].dtype == t.dtype


def test_tensors_may_share_memory_and_have_any_layout(tmp_path: Path) -> None:
    w = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    save(tmp_path, Checkpoint(1, {"a": w, "b": w, "t": w[0, 0].T}, {}))
    found = latest(tmp_path, pytest.fail)
    assert found is not None and torch.equal(found.tensors["b"], w) and torch.equal(found.tensors["t"], w[0, 0].T)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    keep_weights(tmp_path, 1, [tied])
    assert torch.equal(kept_weights(tmp_path)[1]["1.weight"], tied[0].weight)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_found_and_the_previous_checkpoint_is_used(tmp_path: Path, data: st.DataObject) -> None:
    for epoch in (1, 2):
        save(tmp_path, sample(epoch))
    victim = tmp_path / data.draw(st.sampled_from(["00002.json", "00002.safetensors"]))
    content = bytearray(victim.read_bytes())
    damage = data.draw(st.sampled_from(["truncated", "edited", "missing"]))
    if damage == "truncated":
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    elif damage == "edited":
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    victim.write_bytes(content)
    if damage == "missing":
        victim.unlink()
    said: list[str] = []
    found = latest(tmp_path, said.append)
    # a flipped byte may leave the JSON's meaning as it is (white space, an escaped letter): then nothing is lost
    if found is not None and found.epoch == 2:
        assert victim.suffix == ".json" and found.plain == sample(2).plain
        return
    assert found is not None and found.epoch == 1
    if damage == "missing" and victim.suffix == ".json":  # tensors alone, as after a kill between the two writes
        assert said == []
    else:
        assert len(said) == 1 and "00002" in said[0] and "before it" in said[0]


def test_no_intact_checkpoint_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, sample(1))
    (tmp_path / "00001.safetensors").write_bytes(b"")
    with pytest.raises(FileError, match="no checkpoint .* is intact"):
        latest(tmp_path, lambda text: None)
