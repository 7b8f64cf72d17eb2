"""`calibrant probe RUN/ --what robustness`, and `train --levels`: what they print, write, keep and refuse."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from calibrant.attacks import Bounds, levels, robustness
from calibrant.cli import run
from calibrant.data import Batches, load
from calibrant.training import How, distances, read, train
from calibrant.training import load as load_run

SETTINGS = [
    "epochs=20",
    "network={name='mlp', hidden=[32], batch_norm=false}",
    "data.sizes={train=400, validation=150, calibration=150, test=450}",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("probe")
    for seed in (0, 1):
        train(read("digits/cross_entropy", [*SETTINGS, f"seed={seed}"]), root / str(seed), How("cpu", quiet=True))
    return [str(root / "0"), str(root / "1")]


def probed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run(["probe", *words, "--what", "robustness", "--device", "cpu", "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)["robustness"]
    return found


def test_distances_are_kept_with_the_run(
    runs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = probed(capsys, runs[0], "--levels", "5")
    kept = distances.read(Path(runs[0]) / "robustness" / "ddn" / "test.safetensors")
    data = load("digits")
    batches = Batches(data["test"], 500, mean=data.mean, std=data.std)
    alone = robustness(load_run(runs[0]).members[0], batches, "ddn")
    torch.testing.assert_close(kept.distance.float(), alone)
    rows = found["splits"]["test"]["models"][0]["levels"]  # type: ignore[index]
    cut = levels(kept.distance, 5)
    assert [row["n"] for row in rows] == torch.bincount(cut).tolist() == [90] * 5
    assert rows[0]["ece"]["low"] <= rows[0]["ece"]["value"] <= rows[0]["ece"]["high"]
    assert rows[0]["variance"] is None and rows[0]["distance"] < rows[4]["distance"]
    monkeypatch.setattr(distances, "robustness", lambda *a, **k: pytest.fail("measured twice"))
    assert probed(capsys, runs[0], "--levels", "5") == found


def test_models_stand_side_by_side_on_the_levels_of_the_first(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers of one model are not mixed with another's."""
    words = ["--limit", "50", "--levels", "2"]
    together = probed(capsys, *runs, *words)
    alone = probed(capsys, runs[0], *words)
    first, second = together["splits"]["test"]["models"]  # type: ignore[index]
    assert [first] == alone["splits"]["test"]["models"] and together["runs"] == 1  # type: ignore[index]
    level = levels(distances.read(Path(runs[0]) / "robustness" / "ddn" / "test-first-50.safetensors").distance, 2)
    data = load("digits")
    batches = Batches(data["test"].take(torch.arange(50), data["test"].split), 50, mean=data.mean, std=data.std)
    ((x, y, _),) = batches
    right = load_run(runs[1]).members[0].eval()(x).argmax(1) == y
    by_hand = [float(right[level == r].double().mean()) for r in (0, 1)]
    assert [row["accuracy"]["value"] for row in second["levels"]] == pytest.approx(by_hand)
    assert run(["probe", *runs, "--what", "robustness", "--device", "cpu", *words]) == 0
    gaps = [model["levels"][0]["gap"]["value"] for model in (first, second)]
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{abs(gaps[1] - gaps[0]):.3g}" in printed.partition("confidence − accuracy where attacks are easiest")[2]


def test_table_and_report(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "[b]report[v2].html"  # brackets are no markup
    words = ["probe", runs[0], "--split", "validation,test", "--limit", "60", "--levels", "3", "--html", str(page)]
    assert run([*words, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "validation: " in out and "test: " in out and "easiest to attack" in out and str(page) in out
    text = page.read_text()
    assert text.count("Are inputs that are easy to attack badly calibrated?") >= 2
    assert "ECE by level" in text and "<svg" in text


def test_the_table_fits_a_terminal_and_no_interval_breaks(
    runs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["probe", runs[0], "--runs", runs[1], "--limit", "60", "--levels", "3", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(printed) if line.startswith("level"))
    rows = printed[at + 1 : at + 7]
    assert (Path(runs[0]) / "robustness" / "ddn" / "test-first-60.safetensors").is_file()
    assert [line[:1] for line in rows] == ["1", " ", "2", " ", "3", " "], "a line of values, a line of intervals"
    assert all(line.count("[") == line.count("]") == line.count(",") == 4 for line in rows[1::2])
    assert all(len(line) <= 100 for line in printed[at - 1 : at + 7])


def test_training_reuses_distances_that_were_probed(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Probe train and validation, then `train --levels RUN`: one report audits both networks."""
    probed(capsys, runs[0], "--split", "train,validation")
    held = {p: p.stat().st_mtime_ns for p in (Path(runs[0]) / "robustness").rglob("*.safetensors")}
    sets = [w for s in [*SETTINGS, "targets={name='ar_adals', alpha=0.1}"] for w in ("--set", s)]
    out = tmp_path / "ar"
    words = ["train", "digits/cross_entropy", "-o", str(out), "--levels", runs[0], "--device", "cpu", *sets]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["predictor"] for row in found["levels"]["table"]] == [
        "vanilla",
        "vanilla + temperature",
        "AR-AdaLS",
        "AR-AdaLS + temperature",
    ]
    assert not (out / "vanilla").exists(), "no twin is trained where levels are handed in"
    page = (out / "report.html").read_text()
    assert "Are inputs that are easy to attack badly calibrated?" in page and "the smoothing ε of each level" in page
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in held.items()), "nothing was measured again"
    assert run(words) == 0
    printed = capsys.readouterr().out
    assert "AR-AdaLS" in printed
    assert str(out / "report.html") in printed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{run}", "--what", "robustnes"], "did you mean 'robustness'"),
        (["{run}", "--what", ","], "--what is empty"),
        (["{run}", "{run}/."], "is named twice"),
        (["{run}", "--ruler", "cv"], "did you mean 'cw'"),
        (["{run}", "--levels", "451"], "--levels 451 of 450 test items"),
        (["{run}", "--split", "tset"], "unknown split 'tset'"),
        (["{run}", "--variance", "tru"], "did you mean 'true'"),
        (["{run}", "--html", "no/such/folder.html"], "name a file in a folder that exists"),
        (["{run}", "--device", "npu"], "--device 'npu'"),
        (["nothing"], "no model 'nothing'"),
        (["torch.nn:Identity"], "--data is missing"),
        (["torch.nn:Identity", "--data", "digits"], "pass a folder for the results with -o"),
    ],
)
def test_what_a_user_can_get_wrong(
    arguments: list[str],
    says: str,
    runs: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(Path(runs[1]).rglob("*"))
    assert run(["probe", *(word.format(run=runs[1]) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and "Traceback" not in captured.err and captured.out == ""
    assert sorted(Path(runs[1]).rglob("*")) == before and not list(tmp_path.iterdir()), "nothing is written"


MODELS = """
from torch import nn

def linear(inputs, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))

def wrong():
    return linear(30, 10)

def five():
    return linear(64, 5)

def constant():
    network = linear(64, 10)
    nn.init.zeros_(network[1].weight)
    return network

def maps():
    return nn.Conv2d(1, 10, 1)

class Infinite(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, 20:30] / (0 * x.flatten(1)[:, :1])
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models that the command line finds by their names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "probed_models.py").write_text(MODELS)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    sys.modules.pop("probed_models", None)
    return tmp_path


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("wrong", "network 'probed_models:wrong' cannot read digits (1×8×8)"),
        ("five", "probed_models:five has 5 classes and digits has 10; pass data with the same classes"),
        ("maps", "probed_models:maps returns shape (2, 10, 8, 8)"),
        ("Infinite", "logits in row 0 has"),
        ("constant", "the model returns constant logits"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_and_leaves_nothing(
    factory: str, says: str, models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if factory != "constant":  # which only an attack can tell
        monkeypatch.setattr(distances, "robustness", lambda *a, **k: pytest.fail("attacked before it was looked at"))
    before = sorted(models.rglob("*"))
    words = ["probe", f"probed_models:{factory}", "--data", "digits", "-o", "kept/here", "--device", "cpu"]
    assert run(words) == 2
    printed = capsys.readouterr()
    assert says in printed.err and "Traceback" not in printed.err and printed.out == ""
    assert sorted(models.rglob("*")) == before


def test_a_model_is_attacked_with_its_own_normalisation(runs: list[str], tmp_path: Path) -> None:
    """A model that knows its own mean and std is normalised by them, when it predicts and when it is attacked."""
    from calibrant.cli.probes.request import Request
    from calibrant.cli.probes.robustness import robustness as probe
    from calibrant.ensembles.reference import Reference

    members, data = load_run(runs[0]).members, load("digits")
    model = Reference(members, "mine", mean=(0.2,), std=(0.5,))
    options = {"variance": "true", "ruler": "ddn", "levels": 2}
    probe(Request((model,), data, ("test",), 30, torch.device("cpu"), tmp_path, options))
    kept = distances.read(tmp_path / "robustness" / "ddn" / "test-first-30.safetensors").distance.float()
    pixels = data["test"].x[:30].float() / 255
    own = Bounds(mean=(0.2,), std=(0.5,))
    torch.testing.assert_close(kept, robustness(members[0], own.inputs(pixels, torch.float32), "ddn", bounds=own))


def test_a_read_only_run_is_probed_from_its_stored_distances(
    runs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["probe", runs[0], "--limit", "40", "--levels", "2", "--device", "cpu"]
    assert run(words) == 0
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: not mode & os.W_OK and allowed(p, mode))  # root may everything
    assert run(words) == 0
    capsys.readouterr()
    assert run([*words, "--ruler", "cw"]) == 2
    assert "no permission to write in" in (printed := capsys.readouterr().err) and "with -o" in printed


def test_runs_of_two_recipes_are_noted(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(read("digits/cross_entropy", ["epochs=1", *SETTINGS[1:]]), tmp_path / "short", How("cpu", quiet=True))
    words = ["--limit", "40", "--levels", "2", "--device", "cpu"]
    assert run(["probe", runs[0], str(tmp_path / "short"), *words]) == 0
    assert "note:" not in capsys.readouterr().err  # side by side, recipes may differ
    assert run(["probe", runs[0], "--runs", str(tmp_path / "short"), *words]) == 0
    assert f"{tmp_path / 'short'} was trained with another recipe than {runs[0]}" in capsys.readouterr().err
    assert run(["probe", runs[0], "--runs", runs[1], *words]) == 0
    assert "note:" not in capsys.readouterr().err


def test_an_unfinished_run_is_reported_as_unfinished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(epoch: int, _: object) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(read("digits/cross_entropy", SETTINGS), tmp_path / "r", How("cpu", quiet=True, listen=stop))
    for words in (["probe", "--limit", "40", "--levels", "2"], ["predict", "-o", str(tmp_path / "p.npz")]):
        assert run([words[0], str(tmp_path / "r"), *words[1:], "--device", "cpu"]) == 0
        assert "has been trained for 1 of 20 epochs; these are its weights so far" in capsys.readouterr().err
