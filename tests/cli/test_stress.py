"""`calibrant stress`: its output, that a kill loses one cell only, and its errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from calibrant import files
from calibrant.cli import run
from calibrant.data import load
from tests.cli.commands import Refused, call
from tests.killed import leave

FEW = ["--types", "contrast,fog", "--severities", "1,5", "--limit", "90", "--device", "cpu"]
FEW += ["--calibrators", "temperature"]


@pytest.fixture(scope="module")
def stressed(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stressed") / "all"
    arguments = ["stress", str(trained), "-o", str(out), "--suite", "all", *FEW, "--html", str(out.parent / "all.html")]
    assert run(arguments) == 0
    return out


def test_all_suites_leave_cells_a_record_and_a_report(stressed: Path) -> None:
    record = json.loads((stressed / "stress.json").read_text("utf-8"))
    assert set(record["corruptions"]["cells"]) == {"contrast-1", "contrast-5", "fog-1", "fog-5"}
    assert record["corruptions"]["means"]["mean_nll"]["low"] is not None
    assert {"1", "5"} == set(record["corruptions"]["by_severity"])
    assert record["breaks"][0]["type"] in ("contrast", "fog")
    assert set(record["ood"]) == {"photographs", "noise_uniform", "noise_gaussian"}
    assert record["ood"]["photographs"]["scores"]["energy"]["auroc"]["value"] is not None
    assert len(record["perturbations"]) == 10 and len(record["frequency"]) == 10
    assert {"none", "temperature"} <= set(record["calibrators"]) and record["made"]["command"]
    page = (stressed.parent / "all.html").read_text("utf-8")
    assert "How well does it hold up on corrupted images?" in page and "Does it know what it does not know?" in page
    assert "survive the shift" in page and "elastic" not in page


def test_a_cell_is_a_file_of_predictions_that_audit_takes(
    stressed: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = stressed / "cells" / "corruption-fog-5.npz"
    held = files.read(cell)
    assert held.n == 90 and held.k == 10 and held.split == "test"
    assert run(["audit", str(cell), "--json", "--no-intervals"]) == 0
    audited = json.loads(capsys.readouterr().out)[0]["metrics"]
    record = json.loads((stressed / "stress.json").read_text("utf-8"))
    for name in ("accuracy", "nll", "ece"):
        assert record["corruptions"]["cells"]["fog-5"][name] == pytest.approx(audited[name]["value"])
    clean, test = files.read(stressed / "cells" / "clean.npz"), files.read(trained / "test.npz")
    assert clean.logits is not None and test.logits is not None
    spread = torch.arange(90) * 450 // 90
    torch.testing.assert_close(clean.logits, test.logits[spread], atol=1e-5, rtol=1e-5)


def test_the_same_command_again_computes_no_cell(
    stressed: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again"
    shutil.copytree(stressed, again)
    (again / "stress.json").unlink()
    before = {p.name: p.stat().st_mtime_ns for p in (again / "cells").iterdir()}
    printed = json.loads(call(capsys, "stress", trained, "-o", again, "--suite", "all", *FEW, "--json")[1])
    assert {p.name: p.stat().st_mtime_ns for p in (again / "cells").iterdir()} == before
    old = json.loads((stressed / "stress.json").read_text("utf-8"))
    assert printed["corruptions"] == old["corruptions"] and printed["ood"] == old["ood"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (["--severities", "1,2"], "severities was [1, 5], is [1, 2]"),
        (["--ensemble", "pep", "--sigma", "0.01"], "ensemble was null"),
    ],
)
def test_other_settings_are_refused_with_the_difference(
    stressed: Path, trained: Path, change: list[str], word: str, refused: Refused
) -> None:
    before = sorted(p.name for p in stressed.rglob("*"))
    refused(["stress", trained, "-o", stressed, "--suite", "all", *FEW, *change], word)
    assert sorted(p.name for p in stressed.rglob("*")) == before


def test_a_killed_run_is_resumed_with_the_same_cells(trained: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    suite = ["--types", "gaussian_noise,contrast", "--severities", "1,3,5", "--limit", "60", "--no-intervals"]
    suite += ["--calibrators", "none", "--device", "cpu"]
    assert run(["stress", str(trained), "-o", str(whole), *suite]) == 0
    script = "import sys; from calibrant.cli import run; run(sys.argv[1:])"
    leave(script, 5, "stress", str(trained), "-o", str(broken), *suite)
    done = {p.name for p in (broken / "cells").glob("[!.]*.npz")}
    assert 3 <= len(done) < 7 and not (broken / "stress.json").exists()
    assert run(["stress", str(trained), "-o", str(broken), *suite]) == 0
    for path in (whole / "cells").glob("*.npz"):
        with np.load(path) as a, np.load(broken / "cells" / path.name) as b:
            np.testing.assert_array_equal(a["logits"], b["logits"])


def test_an_ensemble_a_map_and_a_reference(
    trained: Path, stressed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", str(trained / "calibration.npz"), "--method", "temperature", "-o", str(tmp_path / "MAP")]) == 0
    capsys.readouterr()
    out = tmp_path / "pep"
    asked = ["--ensemble", "pep", "--sigma", "0.05", "--members", "3", "--suite", "corruptions,ood", *FEW]
    more = ["--map", str(tmp_path / "MAP"), "--reference", str(stressed), "--calibrators", "none", "--json"]
    assert run(["stress", str(trained), "-o", str(out), *asked, *more]) == 0
    record = json.loads(capsys.readouterr().out)
    scores = record["ood"]["photographs"]["scores"]
    assert scores["mutual_information"]["auroc"]["value"] is not None
    assert scores["energy"]["auroc"]["value"] is None and "raw" in scores["energy"]["auroc"]["reason"]
    assert set(record["corruptions"]["normalised"]) == {"mce", "mcnll", "mcece"}
    assert record["corruptions"]["normalised"]["mcnll"]["low"] is not None
    assert set(record["calibrators"]) == {"none", "map MAP"}
    with np.load(out / "cells" / "clean.npz") as held:
        assert held["raw"] == "false" and held["member_entropy"].shape == (90,)


def test_held_out_classes_are_foreign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PEP §3.2: train on five classes and detect the other five."""
    five = ["--set", "data.name=digits[0-4]", "--set", "epochs=4", "--set", "network.hidden=[32]", "--device", "cpu"]
    assert run(["train", "digits/cross_entropy", "-o", str(tmp_path / "five"), *five]) == 0
    asked = ["--suite", "ood", "--calibrators", "none", "--device", "cpu", "--json"]
    capsys.readouterr()
    assert run(["stress", str(tmp_path / "five"), "-o", str(tmp_path / "out"), *asked]) == 0
    found = json.loads(capsys.readouterr().out)["ood"]["digits[5,6,7,8,9]"]
    assert found["scores"]["entropy"]["auroc"]["value"] > 0.6 and found["entropy_kl"]["value"] > 0
    assert found["outside"] == len(load("digits[5-9]")["test"].y)


def test_a_reference_on_other_items_is_refused_before_anything_is_written(
    stressed: Path, trained: Path, tmp_path: Path, refused: Refused
) -> None:
    few = ["--types", "contrast,fog", "--severities", "1,5", "--limit", "30", "--device", "cpu"]
    refused(["stress", trained, "-o", tmp_path / "out", *few, "--reference", stressed], "shows other items")
    assert not (tmp_path / "out").exists()


def test_a_cell_that_is_truncated_or_a_link_is_named(
    trained: Path, stressed: Path, tmp_path: Path, refused: Refused
) -> None:
    shutil.copytree(stressed, tmp_path / "all")
    asked = ["stress", str(trained), "-o", str(tmp_path / "all"), "--suite", "all", *FEW]
    cell = tmp_path / "all" / "cells" / "corruption-fog-5.npz"
    cell.write_bytes(cell.read_bytes()[:100])
    refused(asked, "corruption-fog-5.npz: not a readable cell", "delete it and run again")
    cell.unlink()
    assert run(asked) == 0
    assert cell.read_bytes() == (stressed / "cells" / cell.name).read_bytes()
    cell.unlink()
    cell.symlink_to(stressed / "cells" / cell.name)
    refused(asked, "corruption-fog-5.npz is a link that leads out of")


@pytest.mark.parametrize(
    ("name", "spoilt", "word"),
    [
        ("darker", lambda x: x / 255.0, "save bytes 0 … 255 (uint8)"),
        ("darker", lambda x: x.repeat(2, 1)[:, :9], "images are (1, 9, 8), the classifier's are (1, 8, 8)"),
        ("labels", lambda y: np.where(y == y[3], 77, y), "label 77 in row"),
        ("labels", lambda y: np.r_[(y[:1] + 1) % 10, y[1:]], "not five severities of the same items"),
    ],
)
def test_bad_own_corruptions(
    trained: Path, tmp_path: Path, name: str, spoilt: Callable[..., np.ndarray], word: str, refused: Refused
) -> None:
    part = load("digits")["test"]
    arrays = {"darker": part.x[:20, 0].numpy() // 2, "labels": part.y[:20].numpy()}
    folder = tmp_path / "digits-C"
    folder.mkdir()
    for file, array in arrays.items():
        whole = np.concatenate([array] * 5)
        np.save(folder / file, spoilt(whole) if file == name else whole)
    refused(["stress", trained, "-o", tmp_path / "out", "--corruptions", folder, "--device", "cpu"], word)
    assert not (tmp_path / "out").exists()


FACTORY = (
    "import torch\n"
    "def net():\n"
    "    torch.manual_seed(0)\n"
    "    pooled = torch.nn.AdaptiveAvgPool2d(2)\n"
    "    return torch.nn.Sequential(pooled, torch.nn.Flatten(), torch.nn.Linear(12, 10))\n"
)


def test_a_factory_and_a_small_file_that_lacks_the_last_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """The network gives the number of classes; `predict` reads the same file and gives the same numbers."""
    (tmp_path / "mine_small.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8), np.arange(12) % 4
    np.savez("few.npz", images=x, labels=y)
    np.savez("tiny.npz", images=x[:, :6, :6], labels=y)
    asked = ["-o", "out", "--types", "fog,fog", "--severities", "1", "--no-intervals", "--device", "cpu"]
    refused(["stress", "mine_small:net", "--data", "tiny.npz", *asked], "6 × 6 are too small")
    assert not Path("out").exists()
    assert run(["stress", "mine_small:net", "--data", "few.npz", *asked]) == 0
    record = json.loads(Path("out/stress.json").read_text("utf-8"))
    assert record["settings"]["data"] == "few.npz" and "no calibration split" in record["notes"][0]
    assert run(["predict", "mine_small:net", "--data", "few.npz", "-o", "few-said.npz", "--device", "cpu"]) == 0
    with np.load("few-said.npz") as alone, np.load("out/cells/clean.npz") as clean:
        assert np.array_equal(alone["labels"], y) and alone["logits"].shape == (12, 10)
        assert np.allclose(alone["logits"], clean["logits"], atol=1e-6)


def test_recollected_sets_by_name_and_as_a_folder_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CIFAR-10.1 and 10.2 in their documented layouts, and FOLDER/CLASS/*.png, for anyone's model."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8), np.arange(30) % 10
    for folder in ("cifar-10.1", "cifar-10.2"):
        (tmp_path / folder).mkdir()
    np.save(tmp_path / "cifar-10.1" / "cifar10.1_v6_data.npy", x)
    np.save(tmp_path / "cifar-10.1" / "cifar10.1_v6_labels.npy", y)
    np.savez(tmp_path / "cifar-10.2" / "cifar102_test.npz", images=x, labels=y)
    np.savez(tmp_path / "clean.npz", images=x, labels=y)
    for label in range(10):
        (tmp_path / "folder" / str(label)).mkdir(parents=True)
        Image.fromarray(x[label]).save(tmp_path / "folder" / str(label) / "one.png")
    (tmp_path / "mine_natural.py").write_text(
        "import torch\ndef net():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    sets = [word for name in ("cifar10.1", "cifar10.2", "clean.npz", "folder") for word in ("--natural", name)]
    asked = ["--suite", "natural", "--data-root", ".", "--device", "cpu", "--json"]
    code, out, _ = call(capsys, "stress", "mine_natural:net", "--data", "clean.npz", *asked, *sets, "-o", "out")
    record = json.loads(out)
    assert code == 0 and set(record["natural"]) == {"cifar10.1", "cifar10.2", "clean.npz", "folder"}
    folder = record["natural"].pop("folder")
    for report in record["natural"].values():  # the same items under three names
        assert report["metrics"] == record["clean"]["metrics"]
    with np.load("out/cells/clean.npz") as held:
        right = (held["logits"][:10].argmax(1) == held["labels"][:10]).mean()
    assert folder["n"] == 10 and folder["metrics"]["accuracy"]["value"] == pytest.approx(right)
    asked += ["--natural", "clean.npz", "--mean", "0", "--std", "1"]  # a folder states ImageNet's; its size stays 32
    _, out, _ = call(capsys, "stress", "mine_natural:net", "--data", "folder", *asked, "-o", "two")
    assert json.loads(out)["clean"]["metrics"] == folder["metrics"]
