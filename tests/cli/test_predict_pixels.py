"""`calibrant predict` on label maps: networks that return [N, K, H, W], alone, as MC dropout and in a stream."""

from __future__ import annotations

import io
import math
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from calibrant.cli import run
from calibrant.data.camvid import CAMVID, ZIP

FRAMES, EDGES = 9, (6, 8)
MODEL = f"{__name__}:network"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Dropout(0.3), nn.Conv2d(8, len(CAMVID.classes), 1))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CamVid of nine small frames."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    (folder / ZIP).parent.mkdir()
    with ZipFile(folder / ZIP, "w") as archive:
        for part in ("train", "val", "test"):
            for t in range(FRAMES):
                scene, labels = rng.integers(0, 256, (*EDGES, 3)), rng.integers(0, len(CAMVID.classes) + 1, EDGES)
                for name, pixels in ((f"{part}/{t:02d}.png", scene), (f"{part}annot/{t:02d}.png", labels)):
                    held = io.BytesIO()
                    Image.fromarray(pixels.astype(np.uint8)).save(held, "png")
                    archive.writestr(name, held.getvalue())
    return folder


def predicted(root: Path, out: Path, *more: str) -> np.ndarray:
    asked = ["predict", MODEL, "--data", "camvid", "--data-root", str(root), "--split", "validation", "-o", str(out)]
    assert run([*asked, "--class-axis", "1", "--device", "cpu", *more]) == 0
    return np.load(out)["logits"].astype(np.float64)


def test_each_pixel_is_averaged_over_earlier_frames(root: Path, tmp_path: Path) -> None:
    z, stream = predicted(root, tmp_path / "a.npz"), predicted(root, tmp_path / "s.npz", "--stream", "--batch", "4")
    with np.load(tmp_path / "a.npz") as held:
        frame = held["group"]
    assert z.shape == stream.shape == (len(frame), len(CAMVID.classes)) and len(np.unique(frame)) == FRAMES
    np.testing.assert_allclose(np.exp(stream[frame == 0]), _softmax(z[frame == 0]), atol=1e-6)
    assert np.abs(np.exp(stream[frame == 5]) - _softmax(z[frame == 5])).max() > 1e-3
    alone = predicted(root, tmp_path / "w.npz", "--stream", "--window", "0")
    np.testing.assert_allclose(_softmax(alone), _softmax(z), atol=1e-6)


def test_mc_dropout_of_pixels(root: Path, tmp_path: Path) -> None:
    one = predicted(root, tmp_path / "a.npz")
    many = predicted(root, tmp_path / "m.npz", "--ensemble", "dropout", "--members", "3")
    turned = predicted(root, tmp_path / "t.npz", "--ensemble", "dropout", "--members", "3", "--stream")
    assert many.shape == turned.shape == one.shape and not np.allclose(_softmax(many), _softmax(one))
    assert math.isfinite(turned.sum())


@pytest.mark.parametrize("more", [[], ["--stream"]])
def test_a_wrong_class_axis_is_one_line_with_the_option(
    root: Path, tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["predict", MODEL, "--data", "camvid", "--data-root", str(root), "--split", "validation"]
    assert run([*asked, "-o", str(tmp_path / "p.npz"), *more]) == 2
    error = capsys.readouterr().err
    assert "--class-axis 1" in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "p.npz").exists()


def _softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)
