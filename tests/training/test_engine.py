"""`engine = "auto"` chooses by device and length; a network that cannot be compiled runs uncompiled."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from calibrant.files import hashed
from calibrant.losses import LOSSES, PENALTIES
from calibrant.protocols import Stateful
from calibrant.training import How, read, train
from calibrant.training.optimiser import Optimiser, make_optimiser
from calibrant.training.step import WORTH_COMPILING, CompiledIfPossible, Member, Step, choose_engine

RECIPE = read("digits/cross_entropy", ["engine=auto", "epochs=2", "network.hidden=[8]"])


@pytest.mark.parametrize(
    ("device", "processes", "items", "engine"),
    [
        ("cpu", 1, WORTH_COMPILING, "eager"),
        ("cuda", 1, WORTH_COMPILING, "compile+graph"),
        ("cuda", 1, 1000, "graph"),
        ("cuda", 2, WORTH_COMPILING, "eager"),
    ],
)
def test_auto_chooses_by_device_and_length(device: str, processes: int, items: int, engine: str) -> None:
    found, why = choose_engine(RECIPE, device, processes, (), items)
    assert found == engine and bool(why) == (processes > 1)
    assert choose_engine(replace(RECIPE, engine="compile"), device, processes, (), items) == ("compile", "")


def test_a_penalty_with_a_history_runs_eagerly_and_says_so() -> None:
    ranking = PENALTIES["ranking"](weight=1.0, items=10)
    assert choose_engine(RECIPE, "cuda", 1, (ranking,), WORTH_COMPILING)[0] == "eager"
    assert "keeps a history" in choose_engine(RECIPE, "cuda", 1, (ranking,), WORTH_COMPILING)[1]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_can_be_captured(loss: str) -> None:
    """On the device `meta`, where tensors have no numbers: reading one, or a tensor of the host, fails there as it does
    while a CUDA graph is recorded."""
    device = torch.device("meta")
    x, q = torch.empty(8, 6, device=device), torch.empty(8, 5, device=device)
    y = torch.empty(8, dtype=torch.long, device=device)
    for penalty in (made() for made in PENALTIES.values()):
        if isinstance(penalty, Stateful):  # these are refused
            continue
        for weight in (None, (1.0, 2.0, 3.0, 4.0, 5.0)):
            network = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 5)).to(device)
            member = Member(network, make_optimiser(Optimiser("adam"), network), network, copy.deepcopy(network))
            step = Step(member, LOSSES[loss](reduction="none", weight=weight), (penalty,), ema=0.9)
            found, hits = step(x, q, y, y, 8)
            assert found.device == hits.device == device


def test_a_failed_compilation_runs_eagerly_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(network: nn.Module) -> Any:
        def fail(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no compiler here\nand a long trace")

        return fail

    network, said, x = nn.Linear(3, 2), list[str](), torch.ones(1, 3)
    monkeypatch.setattr(torch, "compile", broken)
    forward = CompiledIfPossible(network, said.append)
    assert torch.equal(forward(x), network(x)) and torch.equal(forward(x), network(x))
    assert said == ["not compiled, so it runs slower: RuntimeError: no compiler here"]


def test_a_run_records_its_engine_and_the_key_ignores_it(tmp_path: Path) -> None:
    train(RECIPE, tmp_path / "run", How(device="cpu", quiet=True))
    assert hashed.read(tmp_path / "run" / "metrics.json")["engine"] == "eager"
    assert RECIPE.key() == replace(RECIPE, engine="eager").key()
