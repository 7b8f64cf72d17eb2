"""`calibrant predict`: any model, every ensemble, and the items of a split as the frames of a stream."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import calibrant
from calibrant import files
from calibrant.cli import run
from calibrant.cli.predict import narrowed
from calibrant.data import load
from tests.cli.commands import Refused

FACTORY = """
from torch import nn

def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def test_predict_takes_a_users_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_linear.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    rng = torch.Generator().manual_seed(0)
    weights = {"1.weight": torch.randn(10, 64, generator=rng), "1.bias": torch.randn(10, generator=rng)}
    torch.save({"state_dict": {f"module.{k}": v for k, v in weights.items()}}, "w.pt")
    asked = ["predict", "mine_linear:linear@w.pt", "--data", "digits", "--mean", "0", "--std", "1", "--device", "cpu"]
    assert run([*asked, "-o", "p.npz"]) == 0
    p = files.read("p.npz")
    x = load_digits().data[[int(i) for i in p.ids or ()]] / 16
    expected = x @ weights["1.weight"].double().numpy().T + weights["1.bias"].double().numpy()
    assert p.logits is not None
    np.testing.assert_allclose(p.logits.numpy(), expected, atol=5e-2)  # pixels are stored as bytes


def test_predict_on_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digits as PNG files in folders named like the classes give the same logits as the arrays."""
    train = ["train", "digits/cross_entropy", "-o", f"{tmp_path}/run", "--set", "epochs=2", "--device", "cpu", "--json"]
    assert run(train) == 0
    data = load("digits")
    part, folder = data["test"], tmp_path / "images"
    for i, (x, y) in enumerate(zip(part.x[:60], part.y[:60], strict=True)):
        (folder / f"{int(y)}").mkdir(parents=True, exist_ok=True)
        if int(y) in (3, 7):
            Image.fromarray(x[0].numpy()).save(folder / f"{int(y)}" / f"{i:03}.png")
    for empty in folder.iterdir():
        if not any(empty.iterdir()):
            empty.rmdir()
    predict = ["predict", f"{tmp_path}/run", "--data", str(folder), "-o", f"{tmp_path}/p.npz", "--device", "cpu"]
    assert run(predict) == 0
    found, there = files.read(tmp_path / "p.npz"), files.read(tmp_path / "run" / "test.npz")
    assert set(found.labels.tolist()) == {3, 7} and found.logits is not None and there.logits is not None
    expected = [i for label in (3, 7) for i in range(60) if int(part.y[i]) == label]
    torch.testing.assert_close(found.logits, there.logits[expected], rtol=1e-4, atol=1e-4)
    (folder / "7").rename(folder / "seven")
    capsys.readouterr()
    assert run(predict) == 2
    assert "'seven' is not a class of the model" in capsys.readouterr().err


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    (tmp_path / "mine_pickle.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    torch.save(torch.nn.Linear(2, 2), tmp_path / "w.pt")
    refused(
        ["predict", "mine_pickle:linear@w.pt", "--data", "digits", "-o", "p.npz"],
        "holds Python objects, which are never loaded; save it again with",
    )


def test_items_of_many_sizes_are_predicted_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    (tmp_path / "many_sizes.py").write_text(
        "import torch\nfrom torch import nn\nfrom torch.utils.data import Dataset\n\n"
        "class Items(Dataset):\n"
        "    def __len__(self):\n        return 40\n"
        "    def __getitem__(self, i):\n"
        "        if i >= 40:\n            raise IndexError\n"
        "        return torch.full((1, 4 + i % 3, 5), float(i)), i % 2\n\n"
        "def make():\n"
        "    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ["predict", "many_sizes:make", "--data", "many_sizes:Items", "--batch", "1", "-o", str(tmp_path / "p.npz")]
    assert run([*given, "--mean", "20", "--std", "10"]) == 0 and len(np.load(tmp_path / "p.npz")["labels"]) > 0
    refused([*given, "--mean", "0,0"], "--mean has 2 numbers; many_sizes:Items has 1 channel(s)")
    refused([*given, "--batch", "8"], "resize in the Dataset or use batch_size=1 (--batch)")


def test_items_that_are_single_numbers_are_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    (tmp_path / "single_words.py").write_text(
        "import torch\nfrom torch import nn\nfrom torch.utils.data import TensorDataset\n\n"
        "def words():\n    return TensorDataset(torch.arange(40) % 7, torch.arange(40) % 2)\n\n"
        "def make():\n    return nn.Embedding(7, 2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ["predict", "single_words:make", "--data", "single_words:words", "-o", str(tmp_path / "p.npz")]
    assert run(given) == 0 and np.load(tmp_path / "p.npz")["logits"].shape[1] == 2
    refused([*given, "--mean", "0,0"], "--mean has 2 numbers; single_words:words has 1 channel(s)")


@pytest.mark.parametrize("name", ["pep", "dropout", "swa", "swag", "snapshot"])
def test_every_ensemble_predicts_from_a_run(
    trained: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    out = tmp_path / "p.npz"
    size = [] if name in ("swa", "snapshot") else ["--members", "4"]
    assert run(["predict", str(trained), "-o", str(out), "--ensemble", name, *size, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["size"] == {"swa": 1, "snapshot": 3}.get(name, 4)
    held = np.load(out)
    np.testing.assert_allclose(np.exp(held["logits"]).sum(1), 1, atol=1e-6)  # pooled: log-probabilities, in float32
    assert run(["audit", str(out), "--no-intervals"]) == 0


def test_pep_is_saved_and_members_are_kept(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    out, saved = tmp_path / "p.npz", tmp_path / "pep"
    common = ["predict", str(trained), "-o", str(out), "--ensemble", "pep", "--members", "3", "--save", str(saved)]
    assert run([*common, "--keep-members", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["pep"]["certificate"]["nll"] <= said["pep"]["certificate"]["nll_at_zero"]
    assert json.loads((saved / "ensemble.json").read_text())["sigma"] == said["pep"]["sigma"]
    assert np.load(out)["logits"].shape[0] == 3
    assert run([*common, "--sigma", "0.05", "--stream", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ensemble"] == "temporal" and said["pep"]["sigma"] == 0.05
    assert json.loads((saved / "ensemble.json").read_text())["sigma"] == 0.05


def test_features_are_written_for_models_of_confidence(trained: Path, tmp_path: Path) -> None:
    for split in ("calibration", "test"):
        assert run(["predict", str(trained), "--split", split, "--features", "-o", str(tmp_path / f"{split}.npz")]) == 0
    held = np.load(tmp_path / "test.npz")
    assert held["features"].ndim == 2 and len(held["features"]) == len(held["labels"])
    fit = ["fit", str(tmp_path / "calibration.npz"), "--method", "trust_score", "-o", str(tmp_path / "map")]
    assert run(fit) == 0
    assert run(["apply", str(tmp_path / "map"), str(tmp_path / "test.npz"), "-o", str(tmp_path / "out.npz")]) == 0


def test_the_noise_and_the_search_of_pep_can_be_chosen(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["predict", str(trained), "-o", str(tmp_path / "p.npz"), "--ensemble", "pep"]
    chosen = ["--where", "all", "--distribution", "uniform", "--search", "golden", "--members", "3"]
    capsys.readouterr()
    assert run([*common, *chosen, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["pep"]
    assert said["where"] == "all" and said["share"] == 1.0 and said["distribution"] == "uniform"
    assert said["certificate"]["search"] == "golden" and said["members"] == 3 and said["certificate"]["members"] == 5
    assert run([*common, "--sigma", "0.01", "--members", "2", "--where", "weights"]) == 0
    assert "% of the weights, --where weights" in capsys.readouterr().out


def test_deep_takes_several_runs(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.npz"
    assert run(["predict", str(trained), str(trained), "-o", str(out), "--ensemble", "deep"]) == 0
    assert run(["predict", str(trained), "-o", str(tmp_path / "single.npz")]) == 0
    single = np.load(tmp_path / "single.npz")["logits"].astype(np.float64)
    single -= np.log(np.exp(single - single.max(1, keepdims=True)).sum(1, keepdims=True)) + single.max(1, keepdims=True)
    np.testing.assert_allclose(np.load(out)["logits"], single, atol=1e-9)  # twice the same network


def test_an_ensemble_of_any_training_method(tmp_path: Path) -> None:
    """AR Table 3, "Ensemble of X": one call trains the seeds, and deep pools them."""
    run_folder, out = tmp_path / "run", tmp_path / "p.npz"
    assert (
        run(["train", "digits/smoothing", "-o", str(run_folder), "--set", "members=3", "--set", "epochs=2", "--json"])
        == 0
    )
    assert run(["predict", str(run_folder), "-o", str(out), "--ensemble", "deep"]) == 0
    assert run(["predict", str(run_folder), "-o", str(tmp_path / "all.npz")]) == 0  # its members, side by side
    members = np.load(tmp_path / "all.npz")["logits"].astype(np.float64)
    assert members.shape[0] == 3 and not np.allclose(members[0], members[1])
    p = np.exp(members - members.max(-1, keepdims=True))
    mean = (p / p.sum(-1, keepdims=True)).mean(0)
    np.testing.assert_allclose(np.exp(np.load(out)["logits"]), mean, atol=1e-6)


def test_the_report_holds_the_network_the_ensemble_and_the_sigma_curve(trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    pep = ["--ensemble", "pep", "--members", "4", "--sigma", "0.02"]
    assert run(["predict", str(trained), "-o", str(tmp_path / "p.npz"), *pep, "--html", str(page)]) == 0
    text = page.read_text("utf-8")
    assert "How much should the weights be perturbed?" in text and "the network alone" in text and "PEP of 4" in text


def test_models_of_other_numbers_of_classes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    net = "def k{0}(): return nn.Sequential(nn.Flatten(), nn.Linear(64, {0}))\n"
    (tmp_path / "two_sizes.py").write_text("from torch import nn\n" + net.format(10) + net.format(12), "utf-8")
    monkeypatch.chdir(tmp_path)
    deep = ["two_sizes:k12", "two_sizes:k12", "--ensemble", "deep"]
    for models, says in (
        (["two_sizes:k10", "two_sizes:k12"], "two_sizes:k12 has 12 classes and two_sizes:k10 has 10"),
        (deep, "two_sizes:k12 has 12 classes and digits has 10"),
    ):
        refused(["predict", *models, "--data", "digits", "-o", "o.npz"], says)
        assert not (tmp_path / "o.npz").exists()


def predicted(trained: Path, out: Path, *more: str) -> np.ndarray:
    assert run(["predict", str(trained), "-o", str(out), *more]) == 0
    return np.load(out)["logits"].astype(np.float64)


def test_each_item_is_averaged_with_those_before_it(trained: Path, tmp_path: Path) -> None:
    z = predicted(trained, tmp_path / "alone.npz")
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    d = math.exp(-0.8)
    expected = (p[2] + d * p[1] + d * d * p[0]) / (1 + d + d * d)
    found = predicted(trained, tmp_path / "stream.npz", "--stream", "--batch", "7")
    np.testing.assert_allclose(np.exp(found[2]), expected, atol=1e-6)
    weights = np.array([d**i for i in range(6)])
    np.testing.assert_allclose(np.exp(found[100]), weights @ p[100:94:-1] / weights.sum(), atol=1e-6)
    named = predicted(trained, tmp_path / "named.npz", "--ensemble", "temporal")
    np.testing.assert_allclose(named, found, atol=1e-6)


def test_mc_dropout_in_a_stream_has_one_member_per_frame(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    out = tmp_path / "p.npz"
    options = ["--stream", "--ensemble", "dropout", "--members", "3", "--window", "2", "--scene-cut", "0.9", "--json"]
    assert run(["predict", str(trained), "-o", str(out), *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ensemble"] == "temporal" and said["size"] == 1
    assert run(["audit", str(out), "--no-intervals"]) == 0


def test_pooled_logits_are_written_in_float32_without_changing_an_audit(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--ensemble", "dropout", "--members", "3")
    narrow = tmp_path / "narrow.npz"
    predicted(trained, narrow, *options)
    assert np.load(narrow)["logits"].dtype == np.float32
    monkeypatch.setattr("calibrant.cli.predict.narrowed", lambda p, networks: p)
    wide = tmp_path / "wide.npz"
    predicted(trained, wide, *options)
    assert np.load(wide)["logits"].dtype == np.float64
    a, b = (calibrant.evaluate(files.read(path)) for path in (narrow, wide))
    for name in b:
        for end in ("value", "low", "high"):
            assert getattr(a[name], end) == pytest.approx(getattr(b[name], end), abs=1e-6), (name, end)


def test_float32_keeps_impossible_and_almost_certain_classes() -> None:
    z = torch.tensor([[0.0, -math.inf], [-1e-30, -690.0]], dtype=torch.float64)
    p = calibrant.predictions(z, [0, 0])
    found = narrowed(p, [torch.nn.Linear(1, 1)]).logits
    assert found is not None and found.dtype == torch.float32
    assert found[0, 1] == -math.inf and -2e-30 < found[1, 0] < 0
    assert narrowed(p, [torch.nn.Linear(1, 1).double()]).logits is p.logits, "a network of float64 keeps its own"
