"""Files with wrong content are an error that names the file or the part."""

from __future__ import annotations

import json
import lzma
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from calibrant.data import load
from calibrant.data.cifar import CIFAR10_FILES
from calibrant.data.mnist import IDX_FILES
from calibrant.data.news20 import FILE
from calibrant.errors import FileError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8)
Y = (np.arange(20) % 10).astype(np.uint8)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"y_train": Y[:7]}, "20 images but 7 labels"),
        ({"y_train": Y + 5}, "label 10 in row 5; the classes are 0 … 9"),
        ({"y_train": Y.astype(int) - 1}, "label -1 in row 0"),
        ({"y_train": Y / 2}, "labels are float64"),
        ({"y_train": Y.astype(str)}, "labels are <U"),
        ({"y_train": np.eye(10)[Y]}, r"labels are float64 of shape \(20, 10\)"),
        ({"x_train": X / 255}, "images are float64"),  # as bytes, they would all be 0 or 1
        ({"x_train": X[:, 0]}, "images of shape"),
        ({"x_train": np.uint8(3)}, "images of shape"),
        ({"x_train": X[:, :20]}, r"the train part of mnist holds 20 inputs of \[1, 20, 28\].*expected \[1, 28, 28\]"),
        ({"x_train": X[:0], "y_train": Y[:0]}, "no images"),
    ],
)
def test_arrays(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    (tmp_path / "mnist").mkdir()
    arrays = {"x_train": X, "y_train": Y, "x_test": X[:5], "y_test": Y[:5], **changed}
    np.savez(tmp_path / "mnist" / "mnist.npz", **arrays)
    with pytest.raises(FileError, match=says):
        load("mnist", root=tmp_path)


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"\0\0\x08\xff" + bytes(50), "not an idx file"),
        (b"\0\0\x08\0\1", "labels are uint8 of shape"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "0 bytes where the header promises"),
        (idx(Y[:3]), "20 images but 3 labels"),
        (idx(X), r"labels are maps of shape \(20, 28, 28\)"),
        (idx(Y + 90), "label 90"),
    ],
)
def test_idx_files(tmp_path: Path, raw: bytes, says: str) -> None:
    (tmp_path / "mnist").mkdir()
    for images, labels in IDX_FILES.values():
        (tmp_path / "mnist" / images).write_bytes(idx(X))
        (tmp_path / "mnist" / labels).write_bytes(raw)
    with pytest.raises(FileError, match=rf"train-labels-idx1-ubyte: .*{says}"):
        load("mnist", root=tmp_path)


@pytest.mark.parametrize("labels", [["a"] * 4, {}, 3, [11] * 4, [-3] * 4, [0.5] * 4, [[1], [1, 2]], [10**30] * 4])
def test_labels_of_a_pickle(tmp_path: Path, labels: Any) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    held = {b"data": np.zeros((4, 3072), np.uint8), b"labels": labels}
    for name in (name for group in CIFAR10_FILES.values() for name in group):
        (folder / name).write_bytes(pickle.dumps(held, protocol=4))
    with pytest.raises(FileError, match="data_batch_1: "):
        load("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.zeros((32, 32, 3, 4), np.uint8), [1, 2, 3, 11], "label 11"),
        (np.zeros((32, 32, 3, 4), np.uint8), [1, 2, 3, 0.5], "labels are float64"),
        (np.zeros((32, 32, 3, 4), np.uint8), ["a", "b", "c", "d"], "damaged"),
        (np.zeros((32, 32, 3, 4)), [1, 2, 3, 4], "X is float64"),
        (np.zeros((32, 32, 3, 4), np.uint8), [1, 2], "4 images but 2 labels"),
        (np.zeros((32, 32, 3, 4), np.uint8), [], "has no X and y"),
    ],
)
def test_matlab_files(tmp_path: Path, x: np.ndarray, y: list[Any], says: str) -> None:
    (tmp_path / "svhn").mkdir()
    for name in ("train", "test"):
        held = {"X": x, "y": np.array(y)[:, None]} if y else {"X": x}
        savemat(tmp_path / "svhn" / f"{name}_32x32.mat", held)
    with pytest.raises(FileError, match=rf"train_32x32\.mat: .*{says}"):
        load("svhn", root=tmp_path)


GOOD = {"split": "test", "label": 0, "group": "a", "text": "the cat"}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        *((row, "line 11 has no usable") for row in ([1], "x", {**GOOD, "text": None}, {**GOOD, "label": "a"})),
        *((row, "line 11 has no usable") for row in ({**GOOD, "split": ["test"]}, {**GOOD, "label": 0.5})),
        ({**GOOD, "label": -1}, "the test part of news20 has the label -1"),
        ({**GOOD, "label": 5}, "the test part of news20 has the label 5; its classes are 0 … 2"),
    ],
)
def test_lines_of_news(tmp_path: Path, row: Any, says: str) -> None:
    (tmp_path / FILE).parent.mkdir()
    good = [{**GOOD, "split": "train", "label": i % 2} for i in range(10)]
    with lzma.open(tmp_path / FILE, "wt") as stream:
        stream.writelines(json.dumps(each) + "\n" for each in (*good, row))
    with pytest.raises(FileError, match=says):
        load("news20", root=tmp_path)


def test_a_link_to_nothing_does_not_suggest_itself(tmp_path: Path) -> None:
    from calibrant.files.paths import existing

    (tmp_path / "a.npz").symlink_to(tmp_path / "gone.npz")
    with pytest.raises(FileError, match=r"a\.npz: no such file$"):
        existing(tmp_path / "a.npz")
