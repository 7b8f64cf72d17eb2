"""A user's Dataset, arrays or factory in place of a data set's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from calibrant.data import Batches, load
from calibrant.errors import InputError, UnknownNameError
from calibrant.types import Split


class Items(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        return self.items[place]


def test_one_dataset_is_split_in_four() -> None:
    x = torch.randn(100, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    data = load(TensorDataset(x, torch.arange(100) % 4))
    assert {name: part.n for name, part in data.splits.items()} == {
        Split.TRAIN: 60, Split.VALIDATION: 10, Split.CALIBRATION: 10, Split.TEST: 20,
    }  # fmt: skip
    for part in data.splits.values():
        assert torch.equal(part.x, x[part.index])
    assert data.k == 4
    train = data["train"].x.double()
    assert data.mean == pytest.approx(train.mean((0, 2, 3)).tolist())
    assert data.std == pytest.approx(train.std((0, 2, 3), correction=0).tolist())


def test_a_mapping_keeps_its_parts() -> None:
    x = torch.rand(40, 6)
    both = {"train": TensorDataset(x, torch.arange(40) % 2), "test": TensorDataset(x[:8], torch.arange(8) % 2)}
    data = load(both)
    assert torch.equal(data["test"].x, x[:8])
    assert sum(part.n for name, part in data.splits.items() if name is not Split.TEST) == 40
    with pytest.raises(InputError, match='needs a "train" part'):
        load({"test": both["test"]})


def test_pictures_arrays_and_grey_images() -> None:
    colour = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    data = load(Items([(Image.fromarray(colour), 0), (Image.fromarray(colour), 1)]), sizes=NOTHING)
    assert np.array_equal(data["train"].x[0].permute(1, 2, 0).numpy(), colour)
    grey = load(Items([(np.zeros((4, 4)), 0), (np.ones((4, 4)), 1)]), sizes=NOTHING)
    assert grey.shape == (1, 4, 4)
    assert grey["train"].x.dtype == torch.float32


NOTHING = {"validation": 0, "calibration": 0, "test": 0}


def test_items_of_several_sizes_stay_in_the_dataset() -> None:
    items = [(torch.full((1, 4 + i % 2, 4), float(i)), i % 2) for i in range(8)]
    part = load(Items(items), sizes=NOTHING)["train"]
    assert part.items is not None
    seen = [(x.shape, y.item(), index.item()) for x, y, index in Batches(part, 1)]
    assert seen == [((1, 1, 4 + i % 2, 4), i % 2, i) for i in range(8)]
    for x, y, index in Batches(part, 1, shuffle=True, generator=torch.Generator().manual_seed(0)):
        assert x[0, 0, 0, 0].item() == index.item() and y.item() == index.item() % 2
    with pytest.raises(InputError, match=r"sizes \(1, 4, 4\), \(1, 5, 4\)"):
        list(Batches(part, 4))


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="item 1 is a int; each must be"):
        load(Items([(torch.zeros(2), 0), 3]))
    with pytest.raises(InputError, match="empty"):
        load(Items([]))

    for label in (0.5, -1, torch.tensor([0.0, 1.0]), "cat"):
        with pytest.raises(InputError, match="item 1 has the label .*number of a class"):
            load(Items([(torch.zeros(2), 0), (torch.zeros(2), label)]))

    class Endless(Dataset[Any]):
        pass

    with pytest.raises(InputError, match="Endless has no length"):
        load(Endless())

    with pytest.raises(UnknownNameError, match="unknown part of a data set 'val'; did you mean 'validation'"):
        load({"train": Items([(torch.zeros(2), 0)]), "val": Items([(torch.zeros(2), 0)])})


def test_a_factory_in_a_module_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_set.py").write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "def make(): return TensorDataset(torch.randn(40, 5), torch.arange(40) % 2)\n"
        "def wrong(): return 7\n"
        "def failing(): return {}['key']\n"
    )
    (tmp_path / "failing_module.py").write_text("1 / 0\n")
    data = load("my_own_set:make", seed=1)
    assert data.shape == (5,) and {s: p.n for s, p in data.splits.items()} == {
        "train": 24,
        "validation": 4,
        "calibration": 4,
        "test": 8,
    }
    for name, says in (
        ("my_own_set:wrong", "returned int"),
        ("my_own_set:none", "'none'"),
        ("nowhere:x", "nowhere"),
        ("my_own_set:failing", r"failing\(\), called without arguments, failed with KeyError: 'key'"),
        ("failing_module:make", "importing 'failing_module'.*division by zero"),
    ):
        with pytest.raises(InputError, match=says):
            load(name)


def test_sizes_apply_to_given_parts() -> None:
    x, y = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 4
    one = load(TensorDataset(x, y), sizes={"train": 20})
    assert one["train"].n == 20 and one["test"].n == 20 and one["validation"].n == 10
    several = load({"train": TensorDataset(x, y), "test": TensorDataset(x, y)}, sizes={"train": 30, "test": 40})
    assert several["train"].n == 30 and several["test"].n == 40
    assert load({"train": TensorDataset(x, y), "test": TensorDataset(x, y)})["test"].n == 100, "unless asked, all of it"


def test_only_vectors_of_whole_numbers_are_tokens() -> None:
    y = torch.arange(40) % 2
    assert load((torch.randint(9, (40, 6)), y))["train"].x.dtype == torch.long
    assert load((torch.randint(9, (40, 1, 4, 4)), y))["train"].x.dtype == torch.float32


def test_errors_in_the_users_code_name_it() -> None:
    class Failing(Items):
        def __getitem__(self, place: int) -> Any:
            if place == 3:
                raise OSError("three.png is missing")
            return super().__getitem__(place)

    with pytest.raises(InputError, match=r"item 3 of the train data set failed with OSError: three\.png is missing"):
        load(Failing([(torch.zeros(2), 0)] * 5))
    with pytest.raises(InputError, match=r"3 arrays; pass a pair \(x, y\)"):
        load((1, 2, 3))  # type: ignore[arg-type]
