"""`calibrant stress`: its output, that a kill loses one cell only, and its errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import files
from calibrant.cli import run
from calibrant.data import load
from tests.killed import leave

FEW = ["--types", "contrast,fog", "--severities", "1,5", "--limit", "90", "--device", "cpu"]
FEW += ["--calibrators", "temperature"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stress") / "run"
    settings = ["--set", "epochs=4", "--set", "network.hidden=[32]"]
    assert run(["train", "digits/cross_entropy", "-o", str(out), *settings, "--device", "cpu"]) == 0
    return out


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
    stressed: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again"
    shutil.copytree(stressed, again)
    (again / "stress.json").unlink()
    before = {p.name: p.stat().st_mtime_ns for p in (again / "cells").iterdir()}
    assert run(["stress", str(trained), "-o", str(again), "--suite", "all", *FEW, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {p.name: p.stat().st_mtime_ns for p in (again / "cells").iterdir()} == before
    old = json.loads((stressed / "stress.json").read_text("utf-8"))
    assert printed["corruptions"] == old["corruptions"] and printed["ood"] == old["ood"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (["--seed", "1"], "seed was 0, is 1"),
        (["--severities", "1,2"], "severities was [1, 5], is [1, 2]"),
        (["--limit", "80"], "limit was 90, is 80"),
        (["--ensemble", "pep", "--sigma", "0.01"], "ensemble was null"),
    ],
)
def test_other_settings_are_refused_with_the_difference(
    stressed: Path, trained: Path, change: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(p.name for p in stressed.rglob("*"))
    assert run(["stress", str(trained), "-o", str(stressed), "--suite", "all", *FEW, *change]) == 2
    said = capsys.readouterr().err
    assert word in said and len(said.strip().splitlines()) == 1
    assert sorted(p.name for p in stressed.rglob("*")) == before


def test_kill_loses_the_cell_in_flight_and_the_rest_is_the_same(trained: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    suite = ["--types", "gaussian_noise,contrast,fog", "--no-intervals", "--calibrators", "none", "--device", "cpu"]
    assert run(["stress", str(trained), "-o", str(whole), *suite]) == 0
    script = "import sys; from calibrant.cli import run; run(sys.argv[1:])"
    leave(script, 6, "stress", str(trained), "-o", str(broken), *suite)
    done = {p.name for p in (broken / "cells").glob("[!.]*.npz")}
    assert 3 <= len(done) < 16 and not (broken / "stress.json").exists()
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


def own_sets(folder: Path, n: int = 20) -> Path:
    """A corruption folder in CIFAR-C's layout, and a natural set, from digits."""
    part = load("digits")["test"]
    x, y = part.x[:n].permute(0, 2, 3, 1).numpy(), part.y[:n].numpy()
    c = folder / "digits-C"
    c.mkdir(parents=True)
    np.save(c / "darker.npy", np.concatenate([(x / (1 + s)).astype(np.uint8) for s in range(1, 6)]))
    np.save(c / "inverted.npy", np.concatenate([255 - x] * 5))
    np.save(c / "labels.npy", np.concatenate([y] * 5))
    np.savez(folder / "new.npz", images=x[..., 0], labels=y)
    return folder


def test_own_corruptions_and_natural_sets(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = own_sets(tmp_path)
    asked = ["--corruptions", str(held / "digits-C"), "--natural", str(held / "new.npz"), "--device", "cpu", "--json"]
    asked += ["--calibrators", "temperature"]
    assert run(["stress", str(trained), "-o", str(tmp_path / "out"), *asked]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record["corruptions"]["by_type"]) == {"darker", "inverted"} and record["corruptions"]["n"] == 20
    severities = [record["corruptions"]["cells"][f"inverted-{s}"] for s in range(1, 6)]
    assert all(row == severities[0] for row in severities)
    (natural,) = record["natural"].values()
    test = files.read(trained / "test.npz").take(torch.arange(20))
    assert test.logits is not None
    right = float((test.logits.argmax(1) == test.labels).double().mean())
    assert natural["n"] == 20 and natural["metrics"]["accuracy"]["value"] == pytest.approx(right)


@pytest.mark.parametrize("changed", ["digits-C/darker.npy", "digits-C/labels.npy", "new.npz"])
def test_other_content_under_the_same_name_is_refused(
    trained: Path, tmp_path: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    held = own_sets(tmp_path)
    asked = ["stress", str(trained), "-o", str(tmp_path / "out"), "--corruptions", str(held / "digits-C")]
    asked += ["--natural", str(held / "new.npz"), "--device", "cpu", "--calibrators", "none", "--no-intervals"]
    assert run(asked) == 0
    path = held / changed
    if path.suffix == ".npz":
        with np.load(path) as old:
            np.savez(path, images=255 - old["images"], labels=old["labels"])
    else:
        old = np.load(path)
        np.save(path, 9 - old if path.stem == "labels" else 255 - old)
    assert run(asked) == 2
    assert f"{'natural' if path.suffix == '.npz' else 'corruptions'} was" in capsys.readouterr().err


def test_a_reference_on_other_items_is_refused_before_anything_is_written(
    stressed: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    types = ",".join(json.loads((stressed / "settings.json").read_text("utf-8"))["types"])
    asked = ["--types", types, "--severities", "1,5", "--limit", "30", "--reference", str(stressed), "--device", "cpu"]
    assert run(["stress", str(trained), "-o", str(tmp_path / "out"), *asked]) == 2
    assert "shows other items" in capsys.readouterr().err and not (tmp_path / "out").exists()


def spoil(held: Path, how: str) -> list[str]:
    """Make one thing wrong with the sets of `own_sets`, and return the options that read them."""
    c = held / "digits-C"
    labels, images = np.load(c / "labels.npy"), np.load(c / "darker.npy")
    if how == "rows":
        np.save(c / "darker.npy", images[:-3])
    elif how == "dtype":
        np.save(c / "darker.npy", images / 255.0)
    elif how == "missing":
        (c / "labels.npy").unlink()
    elif how == "truncated":
        (c / "darker.npy").write_bytes((c / "darker.npy").read_bytes()[:900])
    elif how == "range":
        np.save(c / "labels.npy", np.where(labels == labels[3], 77, labels))
    elif how == "blocks":
        np.save(c / "labels.npy", np.r_[(labels[:1] + 1) % 10, labels[1:]])
    elif how == "size":
        np.save(c / "darker.npy", np.zeros((100, 9, 9, 1), np.uint8))
    elif how == "object":
        np.save(c / "labels.npy", np.array([{"a": 1}] * 100, dtype=object), allow_pickle=True)
    elif how == "natural":
        np.savez(held / "new.npz", images=images[:5], labels=labels[:4])
        return ["--natural", str(held / "new.npz"), "--suite", "natural"]
    elif how == "keys":
        np.savez(held / "new.npz", pictures=images[:5])
        return ["--natural", str(held / "new.npz"), "--suite", "natural"]
    return ["--corruptions", str(c)]


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ("rows", "97 images do not come in whole blocks"),
        ("dtype", "save bytes 0 … 255 (uint8)"),
        ("missing", "labels.npy: not found"),
        ("truncated", "darker.npy: this array is truncated"),
        ("range", "label 77 in row"),
        ("blocks", "not five severities of the same items"),
        ("size", "images are (1, 9, 9), the classifier's are (1, 8, 8)"),
        ("object", "labels.npy: this array holds pickled Python objects, which are never loaded"),
        ("natural", "5 images but 4 labels"),
        ("keys", "has no array 'images'"),
    ],
)
def test_bad_own_sets(trained: Path, tmp_path: Path, how: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = spoil(own_sets(tmp_path), how)
    assert run(["stress", str(trained), "-o", str(tmp_path / "out"), *asked, "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert word in " ".join(said.split()) and "Traceback" not in said and len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--suite", "corruption"], "did you mean 'corruptions'"),
        (["--types", "fogg"], "did you mean 'fog'"),
        (["--types", ","], "types is empty"),
        (["--severities", "0,3"], "severities lie in 1 … 5"),
        (["--severities", "high"], "whole numbers"),
        (["--subset", "18"], "subset of corruptions"),
        (["--suite", "natural"], "--natural NAME"),
        (["--natural", "cifar"], "natural-shift set"),
        (["--suite", "ood", "--outside", "cifar11"], "unknown data set 'cifar11'"),
        (["--suite", "ood", "--outside", "nowhere.npz"], "no such file of images"),
        (["--calibration", "test"], "fit on another one"),
        (["--calibrators", "temprature"], "did you mean 'temperature'"),
        (["--data", "digits[0-4]"], "has 10 classes and digits[0-4] has 5"),
        (["--data", "digits[0-77]"], "'0-77' is not a class of digits"),
        (["--data", "digits[3]"], "choose two or more"),
        (["--data", "nowhere.npz"], "no such file of images"),
        (["--map", "nowhere"], "nowhere"),
        (["--reference", "nowhere"], "not a stress folder"),
        (["--html", "no/such/page.html"], "name a file"),
        (["--corruptions", "."], "neither TYPE.npy with labels.npy nor TYPE/SEVERITY/CLASS"),
        (["--mean", "0.1,0.2"], "mean has 2 values for images of 1 channel;"),
        (["--ensemble", "peep"], "did you mean 'pep'"),
        (["--ensemble", "temporal"], "test items are not a stream"),
        (["--members", "3"], "--members is a setting of --ensemble"),
    ],
)
def test_bad_input_leaves_one_line_and_nothing_else(
    trained: Path, tmp_path: Path, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stress", str(trained), "-o", str(tmp_path / "out"), "--device", "cpu", *arguments]) == 2
    said = capsys.readouterr().err
    assert word in said and "Traceback" not in said and len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_cell_that_is_truncated_or_a_link_is_named(
    trained: Path, stressed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(stressed, tmp_path / "all")
    cell = tmp_path / "all" / "cells" / "corruption-fog-5.npz"
    cell.write_bytes(cell.read_bytes()[:100])
    assert run(["stress", str(trained), "-o", str(tmp_path / "all"), "--suite", "all", *FEW]) == 2
    said = capsys.readouterr().err
    assert "corruption-fog-5.npz: not a readable cell" in said and "delete it and run again" in said
    cell.unlink()
    assert run(["stress", str(trained), "-o", str(tmp_path / "all"), "--suite", "all", *FEW]) == 0
    assert cell.read_bytes() == (stressed / "cells" / cell.name).read_bytes()
    cell.unlink()
    cell.symlink_to(stressed / "cells" / cell.name)
    assert run(["stress", str(trained), "-o", str(tmp_path / "all"), "--suite", "all", *FEW]) == 2
    assert "corruption-fog-5.npz is a link that leads out of" in capsys.readouterr().err


def test_text_is_not_an_image(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_text.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "def data():\n    return TensorDataset(torch.randn(60, 4), torch.arange(60) % 3)\n"
        "def net():\n    return torch.nn.Linear(4, 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(["stress", "mine_text:net", "--data", "mine_text:data", "-o", str(tmp_path / "out")]) == 2
    assert "stress is for images" in capsys.readouterr().err


def test_a_file_of_images_is_data_too(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = own_sets(tmp_path)
    asked = ["--types", "fog", "--severities", "3", "--device", "cpu", "--json", "--no-intervals"]
    assert run(["stress", str(trained), "--data", str(held / "new.npz"), "-o", str(tmp_path / "out"), *asked]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["clean"]["n"] == 20 and record["settings"]["data"] == "new.npz"
    assert any("no calibration split" in note for note in record["notes"])
    assert run(["stress", str(trained), "--data", str(held / "digits-C"), "-o", str(tmp_path / "two"), *asked]) == 2
    assert "pass --corruptions" in capsys.readouterr().err


FACTORY = (
    "import torch\n"
    "def net():\n"
    "    torch.manual_seed(0)\n"
    "    pooled = torch.nn.AdaptiveAvgPool2d(2)\n"
    "    return torch.nn.Sequential(pooled, torch.nn.Flatten(), torch.nn.Linear(12, 10))\n"
)


def test_a_factory_and_a_small_file_that_lacks_the_last_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The network gives the number of classes; `predict` reads the same file and gives the same numbers."""
    (tmp_path / "mine_small.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8), np.arange(12) % 4
    np.savez("few.npz", images=x, labels=y)
    np.savez("tiny.npz", images=x[:, :6, :6], labels=y)
    asked = ["-o", "out", "--types", "fog,fog", "--severities", "1", "--no-intervals", "--device", "cpu"]
    assert run(["stress", "mine_small:net", "--data", "tiny.npz", *asked]) == 2
    assert "6 × 6 are too small" in capsys.readouterr().err and not Path("out").exists()
    assert run(["stress", "mine_small:net", "--data", "few.npz", *asked]) == 0
    assert run(["predict", "mine_small:net", "--data", "few.npz", "-o", "few-said.npz", "--device", "cpu"]) == 0
    with np.load("few-said.npz") as alone, np.load("out/cells/clean.npz") as clean:
        assert np.array_equal(alone["labels"], y) and alone["logits"].shape == (12, 10)
        assert np.allclose(alone["logits"], clean["logits"], atol=1e-6)


def test_predict_leaves_small_images_of_a_folder_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    (tmp_path / "mine_folder.py").write_text(
        FACTORY.replace("pooled, torch.nn.Flatten(), torch.nn.Linear(12", "torch.nn.Flatten(), torch.nn.Linear(768")
    )
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    for i, image in enumerate(x):
        Path(f"photos/{i % 10}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(f"photos/{i % 10}/{i}.png")
    assert run(["predict", "mine_folder:net", "--data", "photos", "-o", "said.npz", "--device", "cpu"]) == 0
    with np.load("said.npz") as said:
        assert said["logits"].shape == (20, 10)


def test_recollected_sets_by_name_and_as_a_folder_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CIFAR-10.1 and 10.2 in their documented layouts, and FOLDER/CLASS/*.png, for anyone's model."""
    from PIL import Image

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
    sets = [word for name in ("cifar10.1", "cifar10.2", "clean.npz") for word in ("--natural", name)]
    asked = ["--data", "clean.npz", "--suite", "natural", "--data-root", ".", "--device", "cpu", "--json"]
    assert run(["stress", "mine_natural:net", *asked, *sets, "-o", "out"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record["natural"]) == {"cifar10.1", "cifar10.2", "clean.npz"}
    for report in record["natural"].values():  # the same items under three names
        assert report["metrics"] == record["clean"]["metrics"]
    assert run(["stress", "mine_natural:net", *asked, "--natural", "folder", "-o", "two"]) == 0
    folder = json.loads(capsys.readouterr().out)["natural"]["folder"]
    asked = ["--suite", "natural", "--natural", "clean.npz", "--device", "cpu", "--json", "--mean", "0", "--std", "1"]
    assert run(["stress", "mine_natural:net", "--data", "folder", *asked, "-o", "three"]) == 0  # 32 × 32, as they are
    assert json.loads(capsys.readouterr().out)["clean"]["metrics"] == folder["metrics"]
    with np.load("out/cells/clean.npz") as held:
        right = (held["logits"][:10].argmax(1) == held["labels"][:10]).mean()
    assert folder["n"] == 10 and folder["metrics"]["accuracy"]["value"] == pytest.approx(right)


def test_a_network_that_cannot_read_the_data_gives_the_error_of_predict(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "large.npz", images=np.zeros((4, 28, 28), np.uint8), labels=np.arange(4))
    asked = ["--data", str(tmp_path / "large.npz"), "-o", str(tmp_path / "out"), "--device", "cpu"]
    assert run(["stress", str(trained), *asked]) == 2
    said = capsys.readouterr().err
    assert "cannot read" in said and "(1×28×28)" in said and "choose a network or data that fit" in said
    assert len(said.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_a_corruption_set_as_folders_of_images(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The layouts of ImageNet-C and CIFAR-C give the same numbers for the same images; a missing severity is named."""
    from PIL import Image

    held = own_sets(tmp_path)
    x, y = np.load(held / "digits-C" / "darker.npy").reshape(5, 20, 8, 8), np.load(held / "digits-C" / "labels.npy")
    order = np.argsort(y[:20], kind="stable")
    for s in range(5):
        for place, i in enumerate(order):
            cell = tmp_path / "images" / "darker" / str(s + 1) / str(y[i])
            cell.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[s, i]).save(cell / f"{place:02d}.png")
    asked = ["--device", "cpu", "--json", "--calibrators", "none", "--no-intervals"]
    records = []
    for folder, more in (("images", []), ("digits-C", ["--types", "darker"])):
        out = ["-o", str(tmp_path / f"out-{folder}"), "--corruptions", str(tmp_path / folder)]
        assert run(["stress", str(trained), *out, *asked, *more]) == 0
        records.append(json.loads(capsys.readouterr().out)["corruptions"])
    for key, row in records[1]["cells"].items():
        assert records[0]["cells"][key] == pytest.approx(row)
    (tmp_path / "images" / "darker" / "2" / "0" / ".DS_Store").write_text("no image")
    shutil.rmtree(tmp_path / "images" / "darker" / "4")
    asked = ["stress", str(trained), "--corruptions", str(tmp_path / "images"), "-o", str(tmp_path / "out"), *asked]
    assert run(asked) == 2 and "darker has severities 1,2,3,5; pass --severities 1,2,3,5" in capsys.readouterr().err
    assert run([*asked, "--severities", "1,5"]) == 0
    shutil.copytree(tmp_path / "images" / "darker", tmp_path / "images" / "light" / "darker")
    assert run(asked) == 2 and "have the same type name" in capsys.readouterr().err
