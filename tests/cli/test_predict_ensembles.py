"""`calibrant predict --ensemble`: every method of the table from one run on the bundled digits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calibrant.cli import run


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
    common = ["predict", str(trained), "-o", str(out), "--ensemble", "pep", "--members", "3", "--keep-members"]
    assert run([*common, "--save", str(saved), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["pep"]["certificate"]["nll"] <= said["pep"]["certificate"]["nll_at_zero"]
    assert json.loads((saved / "ensemble.json").read_text())["sigma"] == said["pep"]["sigma"]
    assert np.load(out)["logits"].shape[0] == 3


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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ensemble", "pepp"], "pep"),
        (["--ensemble", "dropout", "--features"], "--features needs a single network"),
        (["--ensemble", "deep"], "several networks"),
        (["--ensemble", "pep", "--fit-on", "test"], "test"),
        (["--ensemble", "pep", "--sigma", "-1"], "sigma"),
        (["--ensemble", "dropout", "--p", "2"], "p=2"),
        (["--ensemble", "dropout", "--where", "nowhere"], "nowhere"),
        (["--ensemble", "pep", "--where", "biases"], "--where biases is unknown; use auto, conv, weights or all"),
        (["--ensemble", "pep", "--distribution", "cauchy"], "use gaussian or uniform"),
        (["--ensemble", "pep", "--search", "grid"], "use bracket or golden"),
        (["--ensemble", "pep", "--search", "golden", "--sigma", "0.1"], "drop one of them"),
        (["--ensemble", "pep", "--html", "no/such/r.html"], "name a file in a folder that exists"),
        (["--ensemble", "pep", "--html", "r.html", "--keep-members"], "drop --keep-members"),
        (["--device", "tpu"], "use auto, cpu or cuda"),
    ],
)
def test_wrong_options_are_one_line_and_exit_code_2(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    capsys.readouterr()
    assert run(["predict", str(trained), "-o", str(tmp_path / "p.npz"), *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and says in error[0] and not list(tmp_path.iterdir())


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--members", "3"], "--members is a setting of --ensemble pep, dropout, deep and swag"),
        (["--members", "3", "--ensemble", "temporal"], "changes nothing with temporal; add one, or drop --members"),
        (["--members", "3", "--ensemble", "swa"], "changes nothing with swa"),
        (["--members", "3", "--ensemble", "snapshot"], "changes nothing with snapshot"),
        (["--keep-members"], "--keep-members is a setting of --ensemble; add that, or drop --keep-members"),
        (["--keep-members", "--ensemble", "temporal"], "no members; drop --keep-members"),
        (["--fit-on", "validation"], "--fit-on is a setting of --ensemble pep; add that, or drop --fit-on"),
        (["--fit-on", "validation", "--ensemble", "dropout"], "--fit-on is a setting of --ensemble pep"),
        (["--sigma", "0.1"], "--sigma is a setting of --ensemble pep; add that, or drop --sigma"),
        (["--search", "golden"], "--search is a setting of --ensemble pep; add that, or drop --search"),
        (["--distribution", "uniform", "--ensemble", "swag"], "--distribution is a setting of --ensemble pep"),
        (["--where", "all", "--ensemble", "deep"], "--where is a setting of --ensemble pep and dropout"),
        (["--p", "0.1"], "--p is a setting of --ensemble dropout; add that, or drop --p"),
        (["--save", "folder"], "--save is a setting of --ensemble pep; add that, or drop --save"),
    ],
)
@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_no_option_of_an_ensemble_is_ignored(
    options: list[str], says: str, stream: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes before anything is loaded: the model does not exist."""
    assert run(["predict", "x.y:z", *options, *stream, "-o", str(tmp_path / "o.npz")]) == 2
    error = capsys.readouterr().err
    says = "no members; drop --keep-members" if stream and "--keep-members" in options else says
    assert says in error and len(error.strip().splitlines()) == 1


def test_pep_in_a_stream_is_saved_too(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    options = ["--ensemble", "pep", "--sigma", "0.05", "--members", "3", "--stream", "--save", str(tmp_path / "pep")]
    assert run(["predict", str(trained), "-o", str(tmp_path / "p.npz"), *options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ensemble"] == "temporal" and said["pep"]["sigma"] == 0.05
    assert json.loads((tmp_path / "pep" / "ensemble.json").read_text())["sigma"] == 0.05


@pytest.mark.parametrize("ensemble", [["--ensemble", "deep"], []])
def test_models_of_other_numbers_of_classes_are_named(
    ensemble: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = "def k{0}(): return nn.Sequential(nn.Flatten(), nn.Linear(64, {0}))\n"
    (tmp_path / "two_sizes.py").write_text("from torch import nn\n" + net.format(10) + net.format(12), "utf-8")
    monkeypatch.chdir(tmp_path)
    for models, says in (
        (["two_sizes:k10", "two_sizes:k12"], "two_sizes:k12 has 12 classes and two_sizes:k10 has 10"),
        (["two_sizes:k12", "two_sizes:k12"], "two_sizes:k12 has 12 classes and digits has 10"),
    ):
        assert run(["predict", *models, "--data", "digits", *ensemble, "-o", "o.npz"]) == 2
        assert says in capsys.readouterr().err and not (tmp_path / "o.npz").exists()
