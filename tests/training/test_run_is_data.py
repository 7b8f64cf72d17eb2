"""A run may come from anyone: edited records, paths that lead out of it, and damaged files are refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from calibrant.cli import run as cli
from calibrant.errors import FileError
from calibrant.files import hashed
from calibrant.training import How, load, read, select, train
from calibrant.training.epochs import kept_weights

QUIET = How(device="cpu", quiet=True, keep_weights=1)
SMALL = ["epochs=1", "network.hidden=[8]", "data.sizes={train=100, validation=40, calibration=20, test=40}"]
SEARCH = [*SMALL, "selection={grid={'targets.epsilon'=[0.0, 0.3]}, criterion='nll'}"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a search; each test works on a copy."""
    folder = tmp_path_factory.mktemp("made")
    train(read("digits/smoothing", SMALL), folder / "run", QUIET)
    select(read("digits/smoothing", SEARCH), folder / "search", QUIET)
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body, indent=2))


def refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli(words) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.strip().splitlines()) == 1, error


def predict(run: str) -> list[str]:
    return ["predict", f"runs/{run}", "--device", "cpu", "-o", "p.npz"]


EDITS: list[tuple[str, str, Callable[[dict[str, Any]], object]]] = [
    ("run", "metrics.json", lambda body: body["metrics"]["test"].update(accuracy=1.0)),
    ("run", "environment.json", lambda body: body.update(threads=7)),
    ("run", "data.json", lambda body: body.update(mean=[0.9])),
    ("run", "recipe.json", lambda body: body["data"].update(seed=3)),
    ("search", "recipe.json", lambda body: body.update(epochs=7)),
    ("search", "selection.json", lambda body: body.update(chosen=body["points"][0], criterion="ece")),
    ("search", "points/*/metrics.json", lambda body: body.update(epochs=7)),
]


@pytest.mark.parametrize(("run", "name", "change"), EDITS, ids=[f"{run}/{name}" for run, name, _ in EDITS])
def test_an_edited_record_is_one_line(
    runs: Path, run: str, name: str, change: Callable[[dict[str, Any]], object], capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (runs / run).glob(name):
        edit(path, change)
    says = f"{Path(name).name} was edited"
    again = ["train", "digits/smoothing", *(w for s in SMALL for w in ("--set", s)), "-o", f"runs/{run}"]
    for words in (predict(run), ["stress", f"runs/{run}", "-o", "s"], ["probe", f"runs/{run}"], again):
        refused(words, says, capsys)
    assert not Path("p.npz").exists() and not Path("s").exists()


def test_a_changed_byte_is_refused(runs: Path) -> None:
    path = runs / "run" / "data.json"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(FileError, match=r"data\.json"):
            load(runs / "run")
    path.write_bytes(whole)
    load(runs / "run")
    path.write_text(json.dumps(hashed.read(path)))
    with pytest.raises(FileError, match=r"data\.json has no hash"):
        load(runs / "run")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"[" * 100_000], ids=repr)
def test_a_damaged_record_is_one_line(runs: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "run" / "data.json").write_bytes(content)
    refused(predict("run"), "data.json", capsys)


@pytest.mark.parametrize("content", [b"\xff = 1", b"seed = ", b"network = 2020-01-01", b"a = " + b"[" * 100_000])
def test_a_damaged_recipe_file_is_one_line(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    refused(["train", str(path), "-o", str(tmp_path / "r")], "mine.toml is not valid TOML", capsys)


@pytest.mark.parametrize("where", ["../run", "{}/run", "points/out", "\0", "a" * 5000, 3, None])
def test_no_stored_path_leads_outside(runs: Path, where: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even in a record with a correct hash, which anyone can write."""
    path = runs / "search" / "selection.json"
    (runs / "search" / "points" / "out").symlink_to(runs / "run")
    body = hashed.read(path)
    folder = where.format(runs) if isinstance(where, str) else where
    hashed.write(path, {**body, "chosen": {**body["chosen"], "folder": folder}})
    refused(predict("search"), "search", capsys)


@pytest.mark.parametrize("name", ["data.json", "checkpoint", "robustness", "epochs"])
def test_no_link_leads_outside(runs: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    outside = runs.parent / "outside"
    there = runs / "run" / name
    if there.exists():
        there.rename(outside)
    else:
        outside.mkdir()
    there.symlink_to(outside)
    refused(predict("run"), f"{name} is a link that leads out of runs/run", capsys)
    words = ["train", "digits/smoothing", *(w for s in SMALL for w in ("--set", s)), "-o", "runs/run"]
    refused(words, f"{name} is a link that leads out of runs/run", capsys)
    there.unlink()
    there.symlink_to("metrics.json")  # inside: of no use here, and no harm
    (runs / "link").symlink_to(runs / "search")
    load(runs / "link")  # the folder itself may be reached by one


def test_a_pipe_is_not_waited_for(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("data.json", "recipe.json"):
        (runs / "run" / name).unlink()
        os.mkfifo(runs / "run" / name)
        refused(predict("run"), "runs/run", capsys)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("data.json", lambda body: body.update(shape=[2, 9, 9])),
        ("data.json", lambda body: body.update(shape=[])),
        ("data.json", lambda body: body.update(shape="abc")),
        ("data.json", lambda body: body.update(classes=7)),
        ("data.json", lambda body: body.update(name="cifar10")),
        ("data.json", lambda body: body.pop("mean")),
        ("recipe.json", lambda body: body["network"].update(hidden=[9])),
        ("recipe.json", lambda body: body["network"].update(hidden="x")),
        ("recipe.json", lambda body: body.update(members=3)),
        ("recipe.json", lambda body: body.update(data="digits")),
        ("recipe.json", lambda body: body.pop("network")),
    ],
)
def test_a_record_with_wrong_content_and_a_right_hash_is_one_line(
    runs: Path, name: str, change: Callable[[dict[str, Any]], object], capsys: pytest.CaptureFixture[str]
) -> None:
    body = hashed.read(runs / "run" / name)
    change(body)
    hashed.write(runs / "run" / name, body)
    refused(predict("run"), "runs/run", capsys)


def test_kept_weights_carry_their_hash(runs: Path) -> None:
    [path] = (runs / "run" / "epochs").glob("weights-*")
    [held] = kept_weights(runs / "run").values()
    assert all(torch.equal(held[k], v) for k, v in load(runs / "run").members[0].state_dict().items())
    tensors, [name] = load_file(path), [k for k in load_file(path) if k.endswith("0.bias")][:1]
    data = path.read_bytes()
    old = tensors[name].numpy().tobytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, bytes(len(old))))
    with pytest.raises(FileError, match="truncated or edited"):
        kept_weights(runs / "run")
    save_file(tensors, path)  # as version 0.2 wrote them
    assert len(kept_weights(runs / "run")) == 1
