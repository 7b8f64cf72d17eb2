"""Trainings side by side on one GPU, in processes forked from a server, measured by others beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrant.bench.place import Place
from calibrant.bench.run import run
from calibrant.executors import InProcess, LocalProcesses
from calibrant.papers import Experiment
from calibrant.training import How
from calibrant.training import read as recipe
from calibrant.training.settings import Choice

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SETTINGS = ["network.hidden=[16]", "network.dropout=0.2", "engine=graph"]
ROW = Experiment("test", "t1", "row", recipe("digits/cross_entropy", SETTINGS), calibrators=("temperature",))


@pytest.mark.filterwarnings("ignore:.*use the GPU in turns")
def test_processes_on_one_gpu_measure_what_one_process_does(tmp_path: Path) -> None:
    shifted = replace(ROW, row="shifted", shifts=("corruptions",), ensembles=(Choice("dropout", {"members": 2}),))
    alone, beside = (Place(tmp_path / n, tmp_path / f"{n}-runs", How(device="cuda", quiet=True)) for n in "ab")
    first = run([ROW, shifted], [0, 1], 3, alone, InProcess())
    second = run([ROW, shifted], [0, 1], 3, beside, LocalProcesses(2, cpu_only=1, cuda=True))
    assert not first.open and not second.open and len(first.cells) == 4
    for one, other in zip(first.cells, second.cells, strict=True):
        assert one.key == other.key and one.device == other.device != "cpu"
        for variant, row in one.measured.items():
            assert other.measured[variant] == pytest.approx(row, rel=0.02, abs=0.01), variant
