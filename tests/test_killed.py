"""After a kill at the renaming of a file, the next call ignores the leftovers and ends with the same result.

The tests kill at the moments at which a leftover was once mistaken for a header, a checkpoint, a result or a class.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from calibrant import robustness
from calibrant.bench.store import Cell, Store
from calibrant.data import load as load_data
from calibrant.data.corruption_folder import CorruptionFolder
from calibrant.data.image_folder import ImageFolder
from calibrant.errors import FileError
from calibrant.files import atomic
from calibrant.files.paths import visible
from calibrant.training import How, checkpoint, distances, load, read, select, train
from calibrant.types import Split
from tests.killed import leave

QUIET = How(device="cpu", quiet=True)

DISTANCES = """
import sys, torch, calibrant
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))
x = torch.rand(12, 20, generator=torch.Generator().manual_seed(1))
calibrant.robustness(model, x, "ddn", chunk=4, store=sys.argv[1], iterations=10)
"""


@pytest.mark.parametrize("k", [1, 2, 4])  # the header, the first chunk, the last
def test_distances(tmp_path: Path, k: int) -> None:
    store = tmp_path / "store"
    leave(DISTANCES, k, str(store), half=k == 2)
    assert not visible(store) or k > 1
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))
    x = torch.rand(12, 20, generator=torch.Generator().manual_seed(1))
    resumed = robustness(model, x, "ddn", chunk=4, store=store, iterations=10)
    assert torch.equal(resumed, robustness(model, x, "ddn", chunk=4, iterations=10))
    assert len(visible(store, "0*.safetensors")) == 3


AR_ADALS = [
    "epochs=2",
    "network={name='mlp', hidden=[16], batch_norm=false}",
    "data.sizes={train=60, validation=40, calibration=20, test=40}",
    "targets={name='ar_adals', alpha=0.5, levels=4, ruler='ddn'}",
]
TRAINS = """
import sys
from calibrant.training import How, read, train
train(read("ar-adals/digits", eval(sys.argv[2])), sys.argv[1], How(device="cpu", quiet=True))
"""


def held(run: Path) -> dict[str, Tensor]:
    return load_file(run / "checkpoint" / "00002.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    train(read("ar-adals/digits", AR_ADALS), run, QUIET)
    return run


@pytest.mark.parametrize(
    ("k", "name"),
    [
        (8, "vanilla/checkpoint/.calibrant-*.00001.json"),
        (15, "vanilla/robustness/ddn/train.*.parts/.calibrant-*.robustness.json"),
        (23, "checkpoint/.calibrant-*.00001.json"),
        (30, ".calibrant-*.metrics.json"),
    ],
)
def test_training_with_levels(trained: Path, tmp_path: Path, k: int, name: str) -> None:
    run = tmp_path / "run"
    leave(TRAINS, k, str(run), repr(AR_ADALS))
    assert list(run.glob(name)), f"file {k} is another one: {[p for p in run.rglob('*') if p.name[0] == '.']}"
    train(read("ar-adals/digits", AR_ADALS), run, QUIET)
    a, b = held(trained), held(run)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    assert {p.relative_to(run) for p in run.rglob("*")} == {p.relative_to(trained) for p in trained.rglob("*")}


SEARCH = ["epochs=1", "network.hidden=[8]", "selection={grid={'targets.epsilon'=[0.0, 0.3]}, criterion='ece'}"]
SEARCHES = """
import sys
from calibrant.training import How, read, select
select(read("digits/smoothing", eval(sys.argv[2])), sys.argv[1], How(device="cpu", quiet=True))
"""


def test_a_search(tmp_path: Path) -> None:
    leave(SEARCHES, 1, str(tmp_path / "run"), repr(SEARCH))
    assert list((tmp_path / "run").glob(".calibrant-*.recipe.json"))
    record = select(read("digits/smoothing", SEARCH), tmp_path / "run", QUIET)
    assert len(record["points"]) == 2 and (tmp_path / "run" / "selection.json").is_file()


WRITES = """
import sys
from calibrant.files import atomic
atomic.write_bytes(sys.argv[1], b"half of it")
"""


def left_beside(target: Path) -> None:
    """Leave what a kill leaves in place of `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    leave(WRITES, 1, str(target))
    [left] = target.parent.glob(f".calibrant-*.{target.name}")
    assert left.suffix == target.suffix and not target.exists()


def test_the_epochs_of_a_run(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "checkpoint", checkpoint.Checkpoint(3, {"w": torch.ones(1)}, {}))
    left_beside(tmp_path / "checkpoint" / "00004.json")
    assert checkpoint.epochs(tmp_path / "checkpoint") == [3]


def test_checkpoints_are_tidied(tmp_path: Path) -> None:
    """Leftovers of every epoch are removed, but neither a file being written nor files of other programs."""
    left_beside(tmp_path / "00004.json")
    left_beside(tmp_path / "00007.safetensors")
    for name in (".gitignore", ".00004.settings.json", "00002.safetensors"):  # the last: killed in tidying
        (tmp_path / name).write_text("")
    with atomic.file(tmp_path / "00009.json") as written:
        for epoch in (4, 5, 6):
            checkpoint.save(tmp_path, checkpoint.Checkpoint(epoch, {"w": torch.ones(1)}, {}))
        kept = {f"0000{e}.{s}" for e in (5, 6) for s in ("json", "safetensors")}
        assert {p.name for p in tmp_path.iterdir()} == {".gitignore", ".00004.settings.json", written.name, *kept}


def test_chunks_of_a_finished_measurement_go(trained: Path) -> None:
    """A kill after the distances were joined leaves their chunks."""
    left = trained / "vanilla" / "robustness" / "ddn" / "train.0123abcd-4567efab.parts"
    left.mkdir()
    (left / "00000.safetensors").write_bytes(b"")
    recipe = read("ar-adals/digits", AR_ADALS)
    data = load_data("digits", seed=recipe.data.seed, sizes=recipe.data.sizes)
    distances.load_or_measure(load(trained / "vanilla").members, data, Split.TRAIN, left.parents[1], ruler="ddn")
    assert not left.exists()


def test_a_store_of_results(tmp_path: Path) -> None:
    cell = Cell("ar/table3/vanilla", 0, "smoke", "a" * 12, "failed", {}, error="it diverged")
    left_beside(tmp_path / "cells" / "bbbbbbbbbbbb.json")
    assert list(Store(tmp_path).cells()) == []
    Store(tmp_path).write(cell)
    assert [(c.experiment, c.key, c.error) for c in Store(tmp_path).cells()] == [
        (cell.experiment, "a" * 12, cell.error)
    ]


def test_corruptions_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    left_beside(folder / "snow.npy")
    np.save(folder / "fog.npy", np.zeros((10, 32, 32, 3), np.uint8))
    np.save(folder / "labels.npy", np.zeros(10, np.int64))
    assert CorruptionFolder(folder, 10, (3, 32, 32)).types == ("fog",)


def test_hidden_folders_are_no_classes_and_hidden_files_no_images(tmp_path: Path) -> None:
    for name in ("cat/a.png", "dog/b.png", ".ipynb_checkpoints/a.png", "cat/._a.png", "dog/.b.k3x_9.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    found = ImageFolder(tmp_path, 8, 8)
    assert found.classes == ("cat", "dog") and [p.name for p, _ in found.files] == ["a.png", "b.png"]


def test_a_folder_below_a_hidden_one_is_listed(tmp_path: Path) -> None:
    """Only names inside the folder count, because a project may lie in ~/.cache."""
    inside = tmp_path / ".cache" / "x"
    (inside / "deep" / ".hidden").mkdir(parents=True)
    for name in ("b.json", "a.json", ".c.json", "deep/d.json", "deep/.hidden/e.json"):
        (inside / name).write_text("{}")
    assert [p.name for p in visible(inside, "*.json")] == ["a.json", "b.json"]
    assert [p.name for p in visible(inside, "**/*.json")] == ["a.json", "b.json", "d.json"]
    assert visible(tmp_path / "nowhere") == []


def test_a_folder_that_may_not_be_listed_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dog").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p).name != "dog" and allowed(p, mode))  # root may everything
    with pytest.raises(FileError, match="no permission to list .*dog"):
        ImageFolder(tmp_path, 8, 8)
