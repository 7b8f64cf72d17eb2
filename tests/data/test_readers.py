"""Readers of MNIST and CIFAR on tiny files of each layout, and errors that say which file to put where."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from calibrant.data import load
from calibrant.data.cifar import CIFAR10_FILES, CIFAR100_FILES, read_mosaic
from calibrant.errors import FileError
from calibrant.types import Split

RNG = np.random.default_rng(0)
SIZES = {"validation": 2, "calibration": 2}


def idx_bytes(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(root: Path, suffix: str) -> dict[str, np.ndarray]:
    folder = root / "mnist"
    folder.mkdir()
    arrays = {}
    for stem, n in (("train", 20), ("t10k", 5)):
        arrays[stem] = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        for name, array in ((f"{stem}-images-idx3-ubyte", arrays[stem]), (f"{stem}-labels-idx1-ubyte", labels)):
            raw = idx_bytes(array)
            (folder / f"{name}{suffix}").write_bytes(gzip.compress(raw) if suffix else raw)
    return arrays


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files(tmp_path: Path, suffix: str) -> None:
    arrays = write_idx(tmp_path, suffix)
    data = load("mnist", root=tmp_path, sizes=SIZES)
    assert data["test"].x.dtype == torch.uint8
    assert np.array_equal(data["test"].x[:, 0].numpy(), arrays["t10k"])
    part = data["calibration"]
    assert np.array_equal(part.x[:, 0].numpy(), arrays["train"][part.index.numpy()])
    assert part.y.tolist() == [i % 10 for i in part.index.tolist()]


def test_npz(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    x, y = RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8), (np.arange(20) % 10).astype(np.uint8)
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    data = load("mnist", root=tmp_path, sizes=SIZES)
    assert np.array_equal(data["test"].x[:, 0].numpy(), x[:5])
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=x, y_train=y)
    with pytest.raises(FileError, match="no array 'x_test'"):
        load("mnist", root=tmp_path)


def test_mosaic_tiles_are_row_major(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (100, 4, 4, 3), dtype=np.uint8)
    mosaic = np.zeros((8, 200, 3), np.uint8)
    for i, image in enumerate(images):
        row, column = divmod(i, 50)
        mosaic[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = image
    Image.fromarray(mosaic).save(tmp_path / "m.webp", lossless=True, exact=True)
    assert np.array_equal(read_mosaic(tmp_path / "m.webp", 4).permute(0, 2, 3, 1).numpy(), images)
    with pytest.raises(FileError, match="not rows of 50 tiles"):
        read_mosaic(tmp_path / "m.webp", 5)
    (tmp_path / "bad.webp").write_bytes(b"RIFF")
    with pytest.raises(FileError, match=r"bad\.webp: this image is truncated"):
        read_mosaic(tmp_path / "bad.webp", 4)


def planes(n: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, 3072), dtype=np.uint8)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_pickles(tmp_path: Path, name: str) -> None:
    folder, files, key = {
        "cifar10": ("cifar-10-batches-py", CIFAR10_FILES, b"labels"),
        "cifar100": ("cifar-100-python", CIFAR100_FILES, b"fine_labels"),
    }[name]
    (tmp_path / folder).mkdir()
    written = {}
    for group in files.values():
        for file in group:
            written[file] = planes(10)
            held = {b"data": written[file], key: [i % 10 for i in range(10)], b"filenames": [b"a.png"] * 10}
            (tmp_path / folder / file).write_bytes(pickle.dumps(held, protocol=4))
    data = load(name, root=tmp_path, sizes=SIZES)
    last = files[Split.TEST][0]
    assert np.array_equal(data["test"].x.numpy(), written[last].reshape(-1, 3, 32, 32))
    assert data["test"].y.tolist() == list(range(10))
    train = np.concatenate([written[file] for file in files[Split.TRAIN]]).reshape(-1, 3, 32, 32)
    assert np.array_equal(data["train"].x.numpy(), train[data["train"].index.numpy()])


def test_old_pickles_name_numpy_by_its_old_module(tmp_path: Path) -> None:
    from calibrant.data.cifar import unpickle

    raw = pickle.dumps({b"data": planes(1), b"labels": [3]}, protocol=4)
    old = raw.replace(b"\x16numpy._core.multiarray", b"\x15numpy.core.multiarray")
    # the frame's length, eight bytes after its opcode, shrinks with the name
    frame = old.index(b"\x95") + 1
    length = int.from_bytes(old[frame : frame + 8], "little") - (len(raw) - len(old))
    (tmp_path / "old").write_bytes(old[:frame] + length.to_bytes(8, "little") + old[frame + 8 :])
    assert unpickle(tmp_path / "old")[b"labels"] == [3]


def test_a_pickle_that_asks_for_more_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "touched",))  # type: ignore[return-value]

    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for file in ("train", "test"):
        (folder / file).write_bytes(pickle.dumps({b"data": Evil(), b"fine_labels": [0]}))
    with pytest.raises(FileError, match=r"train: .*numpy arrays only"):
        load("cifar100", root=tmp_path)
    assert not (tmp_path / "touched").exists()
    (folder / "train").write_bytes(b"\x80\x04\x95")
    with pytest.raises(FileError, match="this pickle is truncated"):
        load("cifar100", root=tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_binaries(tmp_path: Path, name: str) -> None:
    folder, files, labels = {
        "cifar10": ("cifar-10-batches-bin", CIFAR10_FILES, 1),
        "cifar100": ("cifar-100-binary", CIFAR100_FILES, 2),
    }[name]
    (tmp_path / folder).mkdir()
    rows = np.concatenate(
        [np.full((10, labels - 1), 7, np.uint8), np.arange(10, dtype=np.uint8)[:, None], planes(10)], 1
    )
    for group in files.values():
        for file in group:
            (tmp_path / folder / f"{file}.bin").write_bytes(rows.tobytes())
    data = load(name, root=tmp_path, sizes=SIZES)
    assert data["test"].y.tolist() == list(range(10))
    assert np.array_equal(data["test"].x.numpy(), rows[:, labels:].reshape(-1, 3, 32, 32))
    (tmp_path / folder / f"{files[Split.TRAIN][0]}.bin").write_bytes(rows.tobytes()[:-1])
    with pytest.raises(FileError, match="whole records"):
        load(name, root=tmp_path)


def test_missing_files_say_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    with pytest.raises(FileError, match=r"set CALIBRANT_DATA or pass root=.*cifar10/labels\.npz.*cifar-10-batches-py"):
        load("cifar10")
    with pytest.raises(FileError, match=r"cifar10/labels\.npz … .*\(25 files\)"):
        load("cifar10", root=tmp_path)
    with pytest.raises(FileError, match="is not a folder"):
        load("cifar10", root=tmp_path / "nowhere")
    write_idx(tmp_path, "")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    monkeypatch.setenv("CALIBRANT_DATA", str(tmp_path))
    with pytest.raises(FileError, match=r"mnist/t10k-labels-idx1-ubyte is missing \(1 of 4 files\)"):
        load("mnist")
