"""Maps of labels from a user's Dataset or file, and the marks of pixels without a class."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from calibrant.data import Augment, Batches, load
from calibrant.data.image_arrays import load_file
from calibrant.data.items import as_map
from calibrant.data.label_maps import check_common_mark, mark_ignored
from calibrant.errors import FileError, InputError
from tests.data.test_torch_dataset import Items

X = torch.zeros(3, 4, 4)
MAP = torch.tensor([[0, 1, 2, -1]] * 4)
WHOLE = {"validation": 0, "calibration": 0, "test": 0}


@pytest.mark.parametrize(
    "label",
    [
        MAP,
        MAP[None],
        MAP.float(),
        MAP.numpy(),
        MAP.numpy().astype(np.int8),
        MAP.tolist(),
        torch.where(MAP < 0, -100, MAP),
    ],
)
def test_a_map_is_a_tensor_or_an_array_of_whole_numbers(label: Any) -> None:
    data = load(Items([(X, label)] * 3), sizes=WHOLE)
    assert torch.equal(data["train"].y, MAP.expand(3, 4, 4)) and data.k == 3 and data.shape == (3, 4, 4)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_picture_is_a_map_and_its_mark_is_named(dtype: type) -> None:
    picture = Image.fromarray(np.where(MAP.numpy() < 0, 255, MAP.numpy()).astype(dtype))
    one = Items([(X, picture)] * 3)
    assert torch.equal(load(one, sizes=WHOLE, ignore_index=255)["train"].y[1], MAP)
    assert load(one, sizes=WHOLE).k == 256, "unsaid, 255 is a class"


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([(X, MAP), (X, 1)], "the label of item 1 is one class number, that of item 0 a map of"),
        ([(X, MAP), (X, MAP[:2])], r"item 1 is a map of \(2, 4\), that of item 0 a map of \(4, 4\)"),
        ([(X, MAP), (X[:, :2], MAP)], "must be of one size; resize"),
        ([(X, MAP + 0.5)], r"item 0 has the label Tensor of shape \(4, 4\), torch.float32"),
        ([(X, MAP.expand(2, 4, 4))], r"Tensor of shape \(2, 4, 4\)"),
        ([(X, torch.where(MAP < 0, -3, MAP))], "label -3 in map 0, row 0, column 3.*--ignore-index"),
        ([(X, torch.full_like(MAP, -1))], "no pixel has a class"),
    ],
)
def test_mistakes_are_named_in_one_line(items: list[Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        load(Items(items), sizes=WHOLE)
    assert "\n" not in str(caught.value)


def test_ignore_index_is_refused_for_one_label_per_item() -> None:
    for given in ("digits", TensorDataset(torch.zeros(8, 2), torch.arange(8) % 2)):
        with pytest.raises(InputError, match="has one label per item: ignore_index=255 .* is for maps"):
            load(given, ignore_index=255)


def test_crops_need_maps_as_large_as_the_images() -> None:
    part = load(Items([(torch.zeros(3, 8, 8), MAP)] * 2), sizes=WHOLE)["train"]
    with pytest.raises(InputError, match=r"not \(4, 4\) of images of \(8, 8\); drop augment"):
        Batches(part, 2, augment=Augment(), generator=torch.Generator())


def test_a_label_that_no_class_can_have_is_refused_before_classes_are_numbered(tmp_path: Path) -> None:
    images, labels = np.zeros((2, 4, 4, 3), np.uint8), np.zeros((2, 4, 4), np.int64)
    labels[1, 2, 3] = 10**9
    np.savez(tmp_path / "huge.npz", images=images, labels=labels)
    with pytest.raises(InputError, match=r"label 1000000000 in map 1, row 2, column 3"):
        load_file(tmp_path / "huge.npz", None, maps=True)
    pairs = Items([(torch.zeros(3, 4, 4), torch.from_numpy(one)) for one in labels])
    with pytest.raises(InputError, match=r"a label is 1000000000, which would make .* classes.*ignore_index"):
        load({"train": pairs, "test": pairs})


def test_large_unsigned_labels_are_not_marks(tmp_path: Path) -> None:
    """2⁶⁴ − 1 and 2⁶⁴ − 100 would become −1 and −100."""
    for value in (2**64 - 1, 2**64 - 100):
        labels = np.zeros((2, 4, 4), np.uint64)
        labels[0, 0, 0] = value
        np.savez(tmp_path / "u.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=labels)
        with pytest.raises(FileError, match=f"label {value}"):
            load_file(tmp_path / "u.npz", None, maps=True)
        assert as_map(labels[0]) is None


def test_maps_with_an_axis_of_one_and_in_another_order_of_bytes(tmp_path: Path) -> None:
    labels = np.arange(32).reshape(2, 1, 4, 4) % 5
    np.savez(tmp_path / "m.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=labels.astype(">i4"))
    assert torch.equal(load_file(tmp_path / "m.npz", None, maps=True)["test"].y, torch.from_numpy(labels[:, 0]))
    found = as_map(labels[0, 0].astype(">i4"))
    assert found is not None and torch.equal(found, torch.from_numpy(labels[0, 0]))


@pytest.mark.parametrize("mark", [2.5, "2", True, 10**20])
def test_an_index_to_ignore_is_a_whole_number(mark: object) -> None:
    with pytest.raises(InputError, match="ignore_index=.* must be a whole number|is beyond 64 bits"):
        mark_ignored(torch.zeros(1, 4, 4), mark, "mine")  # type: ignore[arg-type]


@pytest.mark.parametrize(("others", "refused"), [(2, True), (253, True), (254, False), (999, False)])
def test_255_is_a_mark_only_above_a_gap(others: int, refused: bool) -> None:
    """A small part of a set with a thousand classes may lack class 254."""
    y = torch.tensor([[[0, others], [1, 255]]])
    parts = load(TensorDataset(torch.zeros(1, 3, 2, 2), y), sizes=WHOLE).splits
    expected = pytest.raises(InputError, match=f"of 255 beside the classes 0 … {others}") if refused else nullcontext()
    with expected:
        check_common_mark(parts, "mine")
