"""`calibrant train` and `calibrant predict`: what they print and write, and their errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from calibrant import files
from calibrant.cli import run
from calibrant.data import load

SMALL = ["--set", "epochs=2", "--set", "network.hidden=[32]", "--device", "cpu"]


def test_train_then_predict_then_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run(["train", "digits/focal", "-o", str(out), *SMALL, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["metrics"]) == {"validation", "calibration", "test"} and printed["epochs"] == 2
    assert run(["train", "digits/focal", "-o", str(out), *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "accuracy" in shown and "calibrant audit" in shown
    test = printed["metrics"]["test"]  # fractions in JSON, percent in the table; NLL is no share
    assert f"{100 * test['accuracy']:.2f}%" in shown and f"{test['nll']:.4f}" in shown
    for split in ("test", "validation"):
        file = tmp_path / f"{split}.npz"
        assert run(["predict", str(out), "-o", str(file), "--split", split, "--device", "cpu"]) == 0
        a, b = files.read(out / f"{split}.npz"), files.read(file)
        assert a.logits is not None and b.logits is not None
        torch.testing.assert_close(a.logits, b.logits, atol=1e-6, rtol=1e-6)
        assert a.ids == b.ids and a.split == b.split and a.classes == b.classes
    capsys.readouterr()
    assert run(["audit", str(out / "test.npz"), "--json", "--no-intervals"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["metrics"]["ece"]["value"] == pytest.approx(
        printed["metrics"]["test"]["ece"]
    )


def test_next_names_an_existing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for test in (40, 0):
        sizes = f"data.sizes={{train=100, validation=40, calibration=0, test={test}}}"
        assert run(["train", "digits/cross_entropy", "-o", str(tmp_path / f"r{test}"), *SMALL, "--set", sizes]) == 0
        said = capsys.readouterr().out
        assert (f"next: calibrant audit {tmp_path / 'r40' / 'test.npz'}" in said) == bool(test)
        table = said.partition("next:")[0]
        assert max(map(len, table.splitlines())) < 80
        assert table.split("\n")[0].split() == ["split", "n", "accuracy", "nll", "brier", "ece", "gap", "auroc"]


def test_a_search_prints_what_it_chose_and_by_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, word in (("validation", "chosen by nll on validation"), ("test", "oracle choice, by nll on test")):
        grid = f"selection={{grid={{'loss.gamma'=[0, 9]}}, split='{split}'}}"
        assert run(["train", "digits/focal", "-o", str(tmp_path / split), *SMALL, "--set", grid]) == 0
        assert word in capsys.readouterr().out


FACTORY = """
from torch import nn

def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_predict_takes_a_users_model(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"mine_{suffix[1:]}.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    rng = torch.Generator().manual_seed(0)
    weights = {"1.weight": torch.randn(10, 64, generator=rng), "1.bias": torch.randn(10, generator=rng)}
    file = tmp_path / f"w{suffix}"
    if suffix == ".safetensors":
        save_file(weights, file)
    elif suffix == ".npz":
        np.savez(file, **{k: v.numpy() for k, v in weights.items()})
    else:
        torch.save({"state_dict": {f"module.{k}": v for k, v in weights.items()}}, file)
    model = f"mine_{suffix[1:]}:linear@{file}"
    assert (
        run(["predict", model, "--data", "digits", "-o", "p.npz", "--mean", "0", "--std", "1", "--device", "cpu"]) == 0
    )
    from sklearn.datasets import load_digits

    p = files.read("p.npz")
    x = load_digits().data[[int(i) for i in p.ids or ()]] / 16
    expected = x @ weights["1.weight"].double().numpy().T + weights["1.bias"].double().numpy()
    assert p.logits is not None
    np.testing.assert_allclose(p.logits.numpy(), expected, atol=5e-2)  # pixels are stored as bytes


def test_predict_on_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digits as PNG files in folders named like the classes give the same logits as the arrays."""
    from PIL import Image

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


def test_nothing_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_pickle.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    torch.save(torch.nn.Linear(2, 2), tmp_path / "w.pt")
    assert run(["predict", f"mine_pickle:linear@{tmp_path / 'w.pt'}", "--data", "digits", "-o", "p.npz"]) == 2
    assert "this file of weights is truncated or damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "digits/fokal", "-o", "r"], "did you mean 'digits/focal'"),
        (["train", "digits/focal", "-o", "r", "--set", "loss.gama=1"], "did you mean 'loss.gamma'"),
        (["train", "digits/focal", "-o", "r", "--set", "network.hiden=[1]"], "'hidden'"),
        (["train", "digits/focal", "-o", "r", "--set", "network=mpl"], "did you mean 'mlp'"),
        (["train", "digits/focal", "-o", "r", "--set", "data.name=digit"], "did you mean 'digits'"),
        (["train", "digits/focal", "-o", "r", "--device", "npu"], "unknown device 'npu'"),
        (["train", "pep/mnist_mlp", "-o", "r", "--data-root", "nowhere"], "mnist: the data root"),
        (["train", "digits/focal"], "-o"),
        (["predict", "nothing", "-o", "p.npz"], "no model 'nothing'"),
        (["predict", ".", "-o", "p.npz"], "is not a run"),
        (["predict", "torch.nn:Identity", "-o", "p.npz"], "--data is missing"),
        (["predict", "torch.nn:Nothing", "-o", "p.npz"], "no function or class 'Nothing'"),
        (["predict", "no.such.module:f", "-o", "p.npz"], "importing 'no.such.module'"),
        (["predict", "torch.nn:Identity", "--data", "digits", "-o", "p.npz"], "expected [N, K]"),
        (
            ["predict", "torch.nn:Identity", "--data", "digits", "--split", "tset", "-o", "p.npz"],
            "unknown split 'tset'",
        ),
        (["predict", "torch.nn:Identity", "--data", "digits", "--mean", "x", "-o", "p.npz"], "must be finite numbers"),
        (["predict", "torch.nn:Identity", "--data", "digits", "--mean", "0,1", "-o", "p.npz"], "--mean has 2 numbers"),
        (["predict", "torch.nn:Identity@w.bin", "--data", "digits", "-o", "p.npz"], "w.bin: no such file"),
    ],
)
def test_what_a_user_can_get_wrong(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert says in captured.err and "Traceback" not in captured.err and captured.out == ""


def test_a_model_that_cannot_read_the_data_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wide_model.py").write_text("from torch import nn\n\ndef make():\n    return nn.Conv2d(3, 10, 8)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "p.npz"
    assert run(["predict", "wide_model:make", "--data", "digits", "-o", str(out)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "'wide_model:make' cannot read digits (1×8×8)" in said[0]
    assert not out.exists()


def test_items_of_many_sizes_are_predicted_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    out = tmp_path / "p.npz"
    given = ["predict", "many_sizes:make", "--data", "many_sizes:Items", "--batch", "1", "-o", str(out)]
    assert run(given) == 0 and len(np.load(out)["labels"]) > 0
    assert run([*given, "--mean", "20", "--std", "10"]) == 0
    for more, says in (
        (["--mean", "0,0"], "--mean has 2 numbers; many_sizes:Items has 1 channel(s)"),
        (["--stream", "--split", "train"], "after frames of (1, "),
        (["--batch", "8"], "resize in the Dataset or use batch_size=1 (--batch)"),
    ):
        capsys.readouterr()
        assert run([*given, *more]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) == 1 and says in said[0]


def test_items_that_are_single_numbers_are_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "single_words.py").write_text(
        "import torch\nfrom torch import nn\nfrom torch.utils.data import TensorDataset\n\n"
        "def words():\n    return TensorDataset(torch.arange(40) % 7, torch.arange(40) % 2)\n\n"
        "def make():\n    return nn.Embedding(7, 2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "p.npz"
    given = ["predict", "single_words:make", "--data", "single_words:words", "-o", str(out)]
    assert run(given) == 0 and np.load(out)["logits"].shape[1] == 2
    assert run([*given, "--mean", "0,0"]) == 2
    assert "--mean has 2 numbers; single_words:words has 1 channel(s)" in capsys.readouterr().err
