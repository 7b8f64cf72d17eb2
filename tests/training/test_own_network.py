"""`calibrant.train(recipe, network=…, data=…)` takes a network, or a function that makes one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import calibrant
from calibrant.errors import InputError
from calibrant.training import How, load, read

QUIET = How(device="cpu", quiet=True)


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def recipe(*settings: str) -> calibrant.training.Recipe:
    return read("digits/focal", ["epochs=2", *settings])


def test_a_module_is_trained_in_place_and_loaded_again(tmp_path: Path) -> None:
    mine = net()
    before = [p.detach().clone() for p in mine.parameters()]
    found = calibrant.train(recipe(), tmp_path / "run", QUIET, network=mine)
    assert found["metrics"]["test"]["n"] == 450
    assert not any(torch.equal(a, b) for a, b in zip(before, mine.parameters(), strict=True))
    with pytest.raises(InputError, match=r"'python:Sequential'.*network=…"):
        load(tmp_path / "run")
    fresh = net()
    [again] = load(tmp_path / "run", network=fresh).members
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(again(x), mine.eval()(x)) and not torch.equal(fresh(x), again(x))


def test_without_a_folder_only_the_network_is_kept() -> None:
    x, y = torch.rand(200, 1, 8, 8), torch.arange(200) % 2
    mine = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    found = calibrant.train(recipe(), network=mine, data=TensorDataset(x, y), how=QUIET)
    assert found["epochs"] == 2 and not mine[1].weight.isnan().any()


def test_members_need_a_function(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one network cannot be 2 members"):
        calibrant.train(recipe("members=2"), network=net(), how=QUIET)
    calibrant.train(recipe("members=2"), tmp_path / "run", QUIET, network=net)
    first, second = load(tmp_path / "run", network=net).members
    assert not torch.equal(first[1].weight, second[1].weight)
    again = calibrant.train(recipe("members=2"), tmp_path / "twice", QUIET, network=net)
    assert again["metrics"]["test"] == calibrant.train(recipe("members=2"), how=QUIET, network=net)["metrics"]["test"]
