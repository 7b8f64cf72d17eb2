"""`calibrant predict` on a user's own label maps, from a file or a Dataset: alone, as a stream, then audited."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from calibrant.cli import run
from tests.cli.commands import Refused

FRAMES, EDGE, K = 12, 8, 4
PLAIN = ["--mean", "0,0,0", "--std", "1,1,1", "--class-axis", "1", "--device", "cpu"]
VIDEO = f"{__name__}:video"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Dropout(0.3), nn.Conv2d(8, K, 1))


def halved() -> nn.Module:
    return nn.Sequential(network(), nn.AvgPool2d(2))


def classifier() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * EDGE * EDGE, K))


def frames(ignored: int = -1, classes: int = K) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (FRAMES, EDGE, EDGE, 3)).astype(np.uint8)
    y = rng.integers(-1, classes, (FRAMES, EDGE, EDGE))
    return x, np.where(y < 0, ignored, y)


def stacked(ignored: int = -1, classes: int = K) -> TensorDataset:
    x, y = frames(ignored, classes)
    return TensorDataset(torch.from_numpy(x.transpose(0, 3, 1, 2).copy()), torch.from_numpy(y))


def video() -> dict[str, Dataset[Any]]:
    """The data set of docs/smoothing.md, whose parts stay whole. The last class does not occur."""
    return {"train": stacked(), "test": stacked(classes=K - 1)}


def torchs_mark() -> dict[str, Dataset[Any]]:
    return {"train": stacked(), "test": stacked(-100)}


def published_mark() -> dict[str, Dataset[Any]]:
    return {"train": stacked(255), "test": stacked(255)}


def saved(path: Path, ignored: int = -1, dtype: type = np.int64) -> Path:
    x, y = frames(ignored)
    if path.suffix == ".npy":
        np.save(path, x)
        np.save(path.with_name("labels.npy"), y.astype(dtype))
    else:
        np.savez(path, images=x, labels=y.astype(dtype))
    return path


def looped(window: int) -> Tensor:
    """Probabilities [T, H, W, K], averaged with those of earlier frames in a plain loop."""
    x, d = torch.from_numpy(frames()[0]).permute(0, 3, 1, 2) / 255, math.exp(-0.8)
    out, seen, model = [], [], network().eval()
    with torch.no_grad():
        for frame in x:
            seen.insert(0, torch.softmax(model(frame[None])[0].permute(1, 2, 0).double(), -1))
            recent = seen[: window + 1]
            total = sum(d**i for i in range(len(recent)))
            out.append(sum((d**i / total * p for i, p in enumerate(recent)), torch.zeros_like(recent[0])))
    return torch.stack(out)


def predicted(data: str | Path, out: Path, *more: str, model: str = "network") -> int:
    return run(["predict", f"{__name__}:{model}", "--data", str(data), "-o", str(out), *PLAIN, *more])


SOURCES: dict[str, Callable[[Path], tuple[str | Path, int, list[str]]]] = {
    "npz": lambda at: (saved(at / "seg.npz"), K, []),
    "npy with labels beside it": lambda at: (saved(at / "seg.npy"), K, []),
    "npz of bytes, 255 ignored": lambda at: (saved(at / "s.npz", 255, np.uint8), K, ["--ignore-index", "255"]),
    "Datasets": lambda at: (VIDEO, K - 1, []),
    "Datasets, torch's mark": lambda at: (f"{__name__}:torchs_mark", K, []),
    "Datasets, 255 ignored": lambda at: (f"{__name__}:published_mark", K, ["--ignore-index", "255"]),
}
STREAMS = [([], 0), (["--stream"], 5), (["--stream", "--batch", "5", "--window", "2"], 2)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("how", "window"), STREAMS)
def test_predictions_are_those_of_a_plain_loop_over_frames(
    source: str, how: list[str], window: int, tmp_path: Path
) -> None:
    data, classes, more = SOURCES[source](tmp_path)
    assert predicted(data, tmp_path / "out.npz", *how, *more) == 0
    labels = frames(classes=classes)[1]
    kept = labels >= 0
    with np.load(tmp_path / "out.npz") as held:
        z = held["logits"].astype(np.float64)
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        np.testing.assert_allclose(p, looped(window).numpy()[kept], atol=1e-6)
        np.testing.assert_array_equal(held["labels"], labels[kept])
        np.testing.assert_array_equal(held["group"], np.nonzero(kept)[0], "a frame is a group, however it is batched")


@pytest.mark.parametrize("data", ["seg.npz", VIDEO])
def test_an_audit_resamples_frames(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "seg.npz")
    assert predicted(data, tmp_path / "s.npz", "--stream") == 0
    capsys.readouterr()
    assert run(["audit", "s.npz", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    labels = frames(classes=K if data == "seg.npz" else K - 1)[1]
    guess, kept = looped(5).argmax(-1).numpy(), labels >= 0
    assert found["n"] == kept.sum() and found["k"] == K
    assert found["metrics"]["accuracy"]["value"] == pytest.approx((guess == labels)[kept].mean(), abs=1e-12)
    assert found["conventions"]["interval"]["resampled"] == "groups"


def test_ensembles_of_maps(tmp_path: Path) -> None:
    data, out = saved(tmp_path / "seg.npz"), tmp_path / "m.npz"
    kept = int((frames()[1] >= 0).sum())
    assert predicted(data, out, "--ensemble", "dropout", "--members", "3", "--keep-members") == 0
    assert np.load(out)["logits"].shape == (3, kept, K)
    assert predicted(data, out, "--ensemble", "pep", "--sigma", "0.05", "--members", "2", "--stream") == 0
    assert np.load(out)["logits"].shape == (kept, K)


def test_pep_chooses_sigma_on_maps_and_draws_its_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "pep.npz", tmp_path / "page.html"
    assert predicted(VIDEO, out, "--ensemble", "pep", "--html", str(page), "--json") == 0
    pep = json.loads(capsys.readouterr().out)["pep"]
    assert np.load(out)["logits"].shape == (int((frames(classes=K - 1)[1] >= 0).sum()), K)
    assert pep["certificate"]["nll_at_zero"] == pytest.approx(math.log(K), abs=0.2)  # labels are random
    assert "σ" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("model", "data", "more", "says"),
    [
        ("halved", "seg.npz", [], "returns maps of 4 × 4, but the labels of seg.npz are maps of 8 × 8"),
        ("halved", VIDEO, ["--stream"], f"returns maps of 4 × 4, but the labels of {VIDEO} are maps of 8 × 8"),
        ("network", "seg.npz", ["--class-axis", "-1"], "pass --class-axis 1"),
        ("classifier", "seg.npz", [], "one answer per image, but the labels of seg.npz are maps of 8 × 8"),
        ("network", "one.npz", [], "one.npz, which have one label each"),
        ("classifier", "one.npz", ["--ignore-index", "255"], "--ignore-index) is for maps of labels; drop it"),
        ("network", "bytes.npz", [], "label 255 in map 0, row 0, column 6"),
        ("network", f"{__name__}:published_mark", ["--stream"], "ignore_index=255, --ignore-index"),
        ("network", "none.npz", [], "no pixel has a class"),
    ],
)
def test_wrong_shapes_are_one_line_and_nothing_is_written(
    model: str, data: str, more: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = frames()
    for name, labels in {
        "seg": y,
        "one": y[:, 0, 0].clip(0),
        "bytes": np.where(y < 0, 255, y).astype(np.uint8),
        "none": np.full_like(y, -1),
    }.items():
        np.savez(f"{name}.npz", images=x, labels=labels)
    refused(["predict", f"{__name__}:{model}", "--data", data, "-o", "p.out.npz", *PLAIN, *more], says)
    assert not (tmp_path / "p.out.npz").exists()


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        (["stress", f"{__name__}:classifier", "--data", "seg.npz"], "one class per item"),
        (["stress", f"{__name__}:classifier", "--data", VIDEO], "its labels are maps of 8 × 8"),
        (["probe", f"{__name__}:classifier", "--data", VIDEO], "its labels are maps of 8 × 8"),
        (["train", "digits/cross_entropy", "--set", f"data.name={VIDEO}"], "not (2, 8, 8, 4)"),
        (["fit", "seg.npz"], "no key 'logits'"),
    ],
)
def test_verbs_that_need_one_label_per_item(
    verb: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "seg.npz")
    refused([*verb, "-o", "out"], says)
    assert not (tmp_path / "out").exists()
