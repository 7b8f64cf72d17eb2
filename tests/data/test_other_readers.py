"""Readers of SVHN, CIFAR's shifts, CamVid, 20 Newsgroups and folders of images, on tiny files of their layouts."""

from __future__ import annotations

import io
import json
import lzma
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from calibrant.data import Batches, load
from calibrant.data.camvid import ZIP
from calibrant.data.cifar_shifts import cifar_c, cifar_p
from calibrant.data.news20 import FILE, encode, read_rows, vocabulary, words
from calibrant.errors import FileError, InputError, UnknownNameError
from calibrant.types import Split

RNG = np.random.default_rng(0)


def pictures(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (*shape, 32, 32, 3), dtype=np.uint8)


def test_svhn(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    x = {name: pictures(12) for name in ("train", "test")}
    for name, images in x.items():
        labels = np.array([10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1])[:, None]
        savemat(tmp_path / "svhn" / f"{name}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": labels})
    data = load("svhn", root=tmp_path, sizes={"validation": 2, "calibration": 2})
    assert data["test"].y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert np.array_equal(data["test"].x.permute(0, 2, 3, 1).numpy(), x["test"])


def test_new_cifar_tests(tmp_path: Path) -> None:
    (tmp_path / "cifar-10.1").mkdir()
    (tmp_path / "cifar-10.2").mkdir()
    x, y = pictures(6), np.arange(6)
    np.save(tmp_path / "cifar-10.1" / "cifar10.1_v6_data.npy", x)
    np.save(tmp_path / "cifar-10.1" / "cifar10.1_v6_labels.npy", y)
    np.savez(tmp_path / "cifar-10.2" / "cifar102_test.npz", images=x, labels=y)
    for name in ("cifar10_1", "cifar10_2"):
        data = load(name, root=tmp_path)
        assert list(data.splits) == [Split.TEST]
        assert np.array_equal(data["test"].x.permute(0, 2, 3, 1).numpy(), x)
        assert data["test"].y.tolist() == list(range(6))


def test_cifar_c(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    with pytest.raises(FileError, match=r"unpack CIFAR-10-C\.tar"):
        cifar_c("cifar10", tmp_path)
    with pytest.raises(UnknownNameError, match="published corruptions"):
        cifar_c("mnist", tmp_path)
    folder.mkdir()
    x = pictures(20)
    np.save(folder / "fog.npy", x)
    np.save(folder / "labels.npy", np.tile(np.arange(4), 5))
    published = cifar_c("cifar10", tmp_path)
    images, labels = published.cell("fog", 3)
    assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), x[8:12]) and labels.tolist() == [0, 1, 2, 3]
    assert published.types == ("fog",)
    np.save(folder / "fog.npy", x[:-1])
    with pytest.raises(FileError, match="19 images do not come in whole blocks of the 20 labels"):
        published.cell("fog", 1)


def test_cifar_p(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-100-P"
    folder.mkdir()
    x = pictures(4, 3)
    np.save(folder / "tilt.npy", x)
    assert np.array_equal(cifar_p("cifar100", tmp_path, "tilt").permute(0, 1, 3, 4, 2).numpy(), x)
    assert cifar_p("cifar100", tmp_path, "tilt", slice(1, 3)).shape == (2, 3, 3, 32, 32)
    with pytest.raises(UnknownNameError, match="did you mean 'tilt'"):
        cifar_p("cifar100", tmp_path, "tilts")


def scene(archive: zipfile.ZipFile, name: str, image: np.ndarray, mode: str) -> None:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, mode, **({"lossless": True} if mode == "WEBP" else {}))
    archive.writestr(name, stream.getvalue())


def test_camvid(tmp_path: Path) -> None:
    path = tmp_path / ZIP
    path.parent.mkdir()
    image, label = pictures(1)[0], RNG.integers(0, 12, (32, 32)).astype(np.uint8)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("classes.txt", "0 Sky")
        for folder in ("train", "val", "test"):
            for i in (1, 0):
                scene(archive, f"{folder}/f{i}.webp", image, "WEBP")
                scene(archive, f"{folder}annot/f{i}.png", label, "PNG")
    data = load("camvid", root=tmp_path)
    assert data.shape == (3, 32, 32), "scenes of another size"
    assert {name: part.n for name, part in data.splits.items()} == dict.fromkeys(("train", "validation", "test"), 2)
    y = data["validation"].y[0].numpy()
    assert np.array_equal(y, np.where(label == 11, -1, label.astype(int)))
    assert np.array_equal(data["train"].x[0].permute(1, 2, 0).numpy(), image)
    with zipfile.ZipFile(path, "w") as archive:
        scene(archive, "train/a.webp", image, "WEBP")
    with pytest.raises(FileError, match=r"train/a\.webp has no trainannot/a\.png"):
        load("camvid", root=tmp_path)
    path.write_bytes(b"no zip")
    with pytest.raises(FileError, match="this zip is truncated or damaged"):
        load("camvid", root=tmp_path)


def write_news(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def test_news(tmp_path: Path) -> None:
    row = lambda split, label, text: {"split": split, "label": label, "group": f"g{label}", "text": text}  # noqa: E731
    rows = [row("train", i % 2, f"the cat {'sat' if i % 2 else 'ran'}") for i in range(10)]
    write_news(tmp_path / FILE, [*rows, row("test", 0, "The dog SAT 42")])
    data = load("news20", root=tmp_path, sizes={"validation": 2, "calibration": 2})
    assert data.classes == ("g0", "g1")
    assert data["test"].x.shape == (1, 500)
    # by frequency, then alphabet: cat 2, the 3, ran 4, sat 5; dog and 42 are unknown to the training texts
    assert data["test"].x[0, :5].tolist() == [3, 1, 5, 1, 0]
    assert data["train"].x.dtype == torch.long
    (tmp_path / FILE).write_bytes(b"nonsense")
    with pytest.raises(FileError, match="this archive of JSON lines is truncated or damaged"):
        load("news20", root=tmp_path)


def test_tokeniser() -> None:
    assert words("Re: It's 42GB!") == ["re", "it", "s", "42", "gb"]
    known = vocabulary([["b", "a", "b"], ["a", "c"]], size=4)
    assert known == {"a": 2, "b": 3}
    assert encode([["a", "c", "b", "a"], []], known, length=3).tolist() == [[2, 1, 3], [0, 0, 0]]


def test_the_text_network_reads_tokens_with_eight_layers() -> None:
    from calibrant.nn import build

    model = build("text_cnn", classes=3, in_channels=20, size=(1, 1), vocabulary=50)
    tokens = torch.randint(0, 50, (4, 20), generator=torch.Generator().manual_seed(0))
    assert model(tokens).shape == (4, 3)
    kinds = [type(m).__name__ for m in model.modules()]
    assert kinds.count("Conv1d") + kinds.count("Linear") == 8


def test_image_folders(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (300 + 20 * i, 260), (40 * (name == "dog"), i, 0)).save(
                    tmp_path / part / name / f"{i}.png"
                )
    data = load(str(tmp_path), sizes={"calibration": 4})
    assert data.classes == ("cat", "dog")
    assert {name: part.n for name, part in data.splits.items()} == {
        "train": 7,
        "validation": 1,
        "calibration": 4,
        "test": 4,
    }
    batches = Batches(data["calibration"], 4, mean=data.mean, std=data.std)
    assert batches.workers > 0
    for x, y, index in batches:
        assert x.shape == (4, 3, 224, 224)
        red, green = (x[:, c, 0, 0] * data.std[c] + data.mean[c] for c in (0, 1))
        assert ((red * 255).round() == 40 * y).all()
        assert ((green * 255).round() == index % 6).all()
    whole = load(str(tmp_path / "test"))
    assert list(whole.splits) == [Split.TEST]
    with pytest.raises(FileError, match="no images in folders of classes"):
        load(str(tmp_path / "test" / "cat"))


def test_numbered_folders_are_ordered_by_value(tmp_path: Path) -> None:
    for name in ("10", "9", "0"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "a.jpg")
    assert load(str(tmp_path)).classes == ("0", "9", "10")


def test_a_folder_fits_the_network_it_is_for(tmp_path: Path) -> None:
    """Images take the shape that is asked for. A folder without parts is test, unless `sizes` asks for other parts."""
    for name in ("3", "4"):
        (tmp_path / name).mkdir()
        for i in range(10):
            Image.new("RGB", (16, 16), (200, 200, 200)).save(tmp_path / name / f"{i}.png")
    small = load(str(tmp_path), shape=(1, 8, 8))
    assert list(small.splits) == ["test"] and small.shape == (1, 8, 8)
    [(x, _, _)] = Batches(small["test"], 20)
    assert x.shape == (20, 1, 8, 8)
    torch.testing.assert_close(x, torch.full_like(x, 200 / 255))
    cut = load(str(tmp_path), shape=(3, 8, 8), sizes={"train": 10, "validation": 4})
    assert {s: p.n for s, p in cut.splits.items()} == {"train": 10, "validation": 4, "calibration": 2, "test": 4}
    with pytest.raises(InputError, match=r"takes \[64\]"):
        load(str(tmp_path), shape=(64,))


def test_imagenet_by_name(tmp_path: Path) -> None:
    v2 = "imagenetv2-matched-frequency-format-val"
    for folder in ("imagenet/val/n01", "imagenet/val/n02", f"{v2}/0", f"{v2}/10", f"{v2}/9"):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (300, 260)).save(tmp_path / folder / f"{i}.JPEG")
    only = load("imagenet", root=tmp_path)
    assert list(only.splits) == ["test"] and only.classes == ("n01", "n02") and only["test"].n == 4
    (tmp_path / "imagenet/train").symlink_to(tmp_path / "imagenet/val")
    whole = load("imagenet", root=tmp_path, sizes={"validation": 2, "calibration": 0})
    assert {s: p.n for s, p in whole.splits.items()} == {"train": 2, "validation": 2, "test": 4}
    assert load("imagenet_v2", root=tmp_path).classes == ("0", "9", "10")
    with pytest.raises(FileError, match="imagenetv2-matched-frequency-format-val"):
        load("imagenet_v2", root=tmp_path / "imagenet")


def test_real_news(big_data: Path) -> None:
    """The published file has the documented items. (Turning them into tokens would take three times as long.)"""
    rows = list(read_rows(big_data / FILE))
    assert Counter(row["split"] for row in rows) == {"train": 11_314, "test": 7_532}
    assert len({(row["label"], row["group"]) for row in rows}) == 20 == len({row["label"] for row in rows})
