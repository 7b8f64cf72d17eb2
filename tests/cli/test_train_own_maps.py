"""`calibrant train` on a user's own label maps, where a certain number marks pixels without a class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from calibrant.cli import run
from calibrant.training import read

FRAMES, EDGE = 6, 16


def scenes(mark: int) -> dict[str, Dataset[Any]]:
    rng = torch.Generator().manual_seed(0)

    def part() -> TensorDataset:
        y = torch.randint(0, 3, (FRAMES, EDGE, EDGE), generator=rng)
        x = (y[:, None] * 80).expand(-1, 3, -1, -1).to(torch.uint8)
        y[:, :2] = mark
        return TensorDataset(x, y)

    return {"train": part(), "validation": part(), "test": part()}


def plain() -> dict[str, Dataset[Any]]:
    return scenes(-1)


def published() -> dict[str, Dataset[Any]]:
    return scenes(255)


SETTINGS = ["epochs=1", "network.width=2", "augment.crop_padding=0"]


def trained(out: Path, data: str, *settings: str) -> int:
    given = [a for s in (*SETTINGS, f"data.name={__name__}:{data}", *settings) for a in ("--set", s)]
    return run(["train", "ss/camvid_unet", *given, "--device", "cpu", "-o", str(out)])


def test_a_named_ignore_index_acts_like_minus_one(tmp_path: Path) -> None:
    assert trained(tmp_path / "a", "plain") == 0
    assert trained(tmp_path / "b", "published", "data.ignore_index=255") == 0
    a, b = (np.load(tmp_path / name / "test.npz") for name in ("a", "b"))
    assert a["labels"].shape == (FRAMES * EDGE * (EDGE - 2),) and a["logits"].shape[1] == 3
    assert np.array_equal(a["logits"], b["logits"]) and np.array_equal(a["labels"], b["labels"])
    assert json.loads((tmp_path / "b" / "recipe.json").read_text())["data"]["ignore_index"] == 255
    again = ["--data", f"{__name__}:published", "--stream", "--device", "cpu", "-o", str(tmp_path / "p.npz")]
    assert run(["predict", str(tmp_path / "b"), *again]) == 0
    assert np.array_equal(np.load(tmp_path / "p.npz")["labels"], b["labels"]), "a run knows the mark of its data"


def test_an_unnamed_ignore_index_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path / "run", "published") == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0 and "pixels of 255 beside the classes 0 … 2" in said
    assert "data.ignore_index=255" in said and not (tmp_path / "run").exists()


def test_a_recipe_without_ignore_index_keeps_its_key() -> None:
    assert "ignore_index" not in read("ss/camvid_unet").plain()["data"]
    assert read("ss/camvid_unet", ["data.ignore_index=255"]).key() != read("ss/camvid_unet").key()
