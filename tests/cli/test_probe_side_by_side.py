"""`calibrant probe A B --what …`: what is printed, written, kept, compared and refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from calibrant.attacks import FGSM, Bounds, assess
from calibrant.cli import run
from calibrant.cli.probes import PROBES
from calibrant.cli.probes.objective import objective
from calibrant.cli.probes.request import Request
from calibrant.data import Batches, load
from calibrant.diagnostics import hessian_spectrum, sample_hardness
from calibrant.ensembles.prediction import predict
from calibrant.ensembles.reference import resolve
from calibrant.files import outputs
from calibrant.metrics.evaluate import evaluate
from calibrant.training import How, read, train
from calibrant.training import load as load_run

SIZES = {"train": 300, "validation": 60, "calibration": 60, "test": 60}
FEW = "data.sizes={" + ", ".join(f"{part}={n}" for part, n in SIZES.items()) + "}"
CNN = "network={name='cifar_cnn', dropout=0.2}"
ALL = "hessian,hardness,variance,fourier,neighbours,sharpness,signs,pep_effect,overfitting,landscape,attack"
SMALL = ["--batches", "2", "--batch", "16", "--limit", "24", "--passes", "3", "--members", "4", "--sigma", "0.05"]
SMALL += ["--grid", "5", "--masks", "2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two runs with different losses on digits, with their epochs kept."""
    root = tmp_path_factory.mktemp("side")
    for loss in ("cross_entropy", "focal"):
        settings = ["epochs=2", FEW, CNN, f"loss={loss}", "optimiser.weight_decay=0.01"]
        how = How("cpu", quiet=True, keep_epochs=True, keep_weights=2)
        train(read("digits/cross_entropy", settings), root / loss, how)
    return [str(root / "cross_entropy"), str(root / "focal")]


@pytest.fixture(scope="module")
def probed(runs: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, object]]]:
    out = tmp_path_factory.mktemp("probed") / "out"
    words = ["probe", *runs, "--what", ALL, "-o", str(out), "--attack", "fgsm,frequency_fgsm", "--epsilon", "0.05"]
    assert run([*words, *SMALL, "--device", "cpu"]) == 0
    return out, json.loads((out / "probe.json").read_text())


def test_numbers_arrays_figures_and_one_page(probed: tuple[Path, dict[str, dict[str, object]]]) -> None:
    out, record = probed
    page = (out / "report.html").read_text()
    for what in ALL.split(","):
        found = record[what]
        names = ["cross_entropy", "focal"][what == "signs" :]
        assert [Path(m["name"]).name for m in found["models"]] == names  # type: ignore[union-attr]
        if what == "signs":  # from three others: one table, and nothing of its own to keep
            assert list(out.glob("signs/*")) == [] and "signs of an ensemble" in page
            continue
        assert len(list((out / what).glob("*.safetensors"))) == 2
        figures = sorted((out / what).glob("figure-*.svg"))
        assert figures and all(f.read_bytes().startswith(b"<?xml") for f in figures)
        captions = found["says"][1:]  # type: ignore[index]
        assert len(captions) == len(figures)
        assert any(re.search("beyond noise|without an interval|same in every epoch", s) for s in found["says"]), what  # type: ignore[union-attr]
    assert page.count("<svg") >= 10 and "mathdefault" not in page
    assert "How sharp is the loss around these weights?" in page and "Which answers survive an attack?" in page
    assert record["made"]["command"]


def test_the_hessian_is_that_of_the_training_loss(
    runs: list[str], probed: tuple[Path, dict[str, dict[str, object]]]
) -> None:
    """Focal with weight decay, on the items that every model sees."""
    model, data = resolve(runs[1]), load("digits", sizes=SIZES)
    options = {"batch": 16, "batches": 2}
    request = Request((model,), data, ("test",), None, torch.device("cpu"), Path(), options)
    found = objective(request, model, 2)
    assert found.weight_decay == 0.01 and "focal" in found.description
    largest = hessian_spectrum(
        load_run(runs[1]).members[0], found.batches, loss=found.loss, weight_decay=found.weight_decay
    ).largest
    record = probed[1]["hessian"]["models"][1]  # type: ignore[index]
    assert record["largest"] == pytest.approx(largest.tolist(), rel=1e-3)
    assert record["trace"]["low"] < record["trace"]["value"] < record["trace"]["high"]
    x, q = found.batches[0]
    p = torch.softmax(load_run(runs[1]).members[0](x), -1).detach()
    by_hand = ((1 - p) ** 3 * -p.log() * q).sum(-1).mean()
    assert float(found.loss(p.log(), q)) == pytest.approx(float(by_hand), rel=1e-5)


def test_hardness_of_other_items_is_measured_anew(runs: list[str], tmp_path: Path) -> None:
    found = []
    for limit in ("24", "60"):
        words = ["probe", runs[0], "--what", "hardness", "--limit", limit, "-o", str(tmp_path / "out")]
        assert run([*words, "--device", "cpu"]) == 0
        record = json.loads((tmp_path / "out" / "probe.json").read_text())
        found.append([e["ece"] for e in record["hardness"]["models"][0]["optimal_ece"]["test"]])
    assert found[0] != found[1]


def test_each_probe_is_its_function(runs: list[str], probed: tuple[Path, dict[str, dict[str, object]]]) -> None:
    record = probed[1]
    hard = record["hardness"]["models"][0]  # type: ignore[index]
    found = sample_hardness(runs[0])
    assert hard["never"] == found.never and hard["correlation"]["value"] == found.rank_correlation().value
    assert [e["epoch"] for e in hard["optimal_ece"]["test"]] == [1, 2] and hard["optimal_ece"]["test"][0]["oracle"]
    assert not hard["optimal_ece"]["validation"][0]["oracle"]
    data = load("digits", sizes=SIZES)
    members = load_run(runs[0]).members
    part = data["test"].take(torch.arange(24), data["test"].split)
    ((x, y, _),) = Batches(part, 24, mean=data.mean, std=data.std)
    strength = assess(members[0], FGSM(epsilon=0.05, bounds=Bounds(mean=data.mean, std=data.std)), x, y)
    row = record["attack"]["models"][0]["attacks"][0]  # type: ignore[index]
    assert row["accuracy_under_attack"]["value"] == pytest.approx(strength.accuracy_under_attack)
    assert len(record["attack"]["models"][0]["attacks"]) == 1 + 9  # type: ignore[index]
    pep = record["pep_effect"]["models"][0]  # type: ignore[index]
    assert pep["sigma"] == 0.05 and pep["items"] == 24 and pep["effect"]["low"] < pep["effect"]["high"]
    epochs = record["overfitting"]["models"][1]["epochs"]  # type: ignore[index]
    assert [e["epoch"] for e in epochs] == [1, 2]
    by_hand = evaluate(predict(load_run(runs[1]).members[0], [(x, y)]), intervals=False)["nll"].value
    assert epochs[1]["test_nll"] == pytest.approx(by_hand, rel=1e-6)
    sharp = record["sharpness"]["models"][0]["sizes"]  # type: ignore[index]
    assert [row["size"] for row in sharp] == [1, 2, 3, 5, 10] and sharp[0]["variance"]["value"] > 0
    signs = record["signs"]["models"][0]  # type: ignore[index]
    apart = [record["hessian"]["models"][i]["largest"] for i in (0, 1)]  # type: ignore[index]
    assert signs["sharpness"]["value"] == pytest.approx(sum(b - a for a, b in zip(*apart, strict=True)) / 2)
    variance = record["variance"]["models"][0]  # type: ignore[index]
    assert variance["items"] == 24 and max(variance["model"]) > 0


def test_finished_results_are_not_measured_again(
    runs: list[str],
    probed: tuple[Path, dict[str, dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = probed[0]
    stamps = {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")}
    import calibrant.cli.probes.variance as module

    monkeypatch.setattr(module, "feature_variance", lambda *a, **k: pytest.fail("measured twice"))
    words = ["probe", *runs, "--what", "variance", "-o", str(out), *SMALL, "--device", "cpu", "--json"]
    assert run(words) == 0
    again = json.loads(capsys.readouterr().out)["variance"]
    assert again["models"] == probed[1]["variance"]["models"]
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")} == stamps
    victim = next((out / "variance").glob("*.safetensors"))
    held = victim.read_bytes()
    victim.write_bytes(held[:-8] + b"\0" * 8)
    assert run(words) == 2
    assert f"{victim} was truncated or edited" in capsys.readouterr().err
    victim.write_bytes(held)


def test_an_interrupted_probe_goes_on_with_the_network_that_it_lost(
    runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import calibrant.cli.probes.fourier as module

    measure, calls = module.feature_fourier, []

    def stopped_at_the_second(*args: Any, **how: Any) -> object:
        calls.append(args[0])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*args, **how)

    monkeypatch.setattr(module, "feature_fourier", stopped_at_the_second)
    words = ["probe", *runs, "--what", "fourier", "-o", str(tmp_path / "out"), *SMALL, "--device", "cpu"]
    assert run(words) == 130 and not (tmp_path / "out" / "probe.json").exists()
    assert len(list((tmp_path / "out" / "fourier").iterdir())) == 1
    assert run(words) == 0
    assert len(calls) == 3 and (tmp_path / "out" / "report.html").is_file()


def test_every_probe_has_a_folder_that_an_output_may_hold() -> None:
    assert all(re.fullmatch(outputs.PROBED, what) for what in PROBES)


def test_signs_need_two_networks(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", runs[0], "--what", "signs", "-o", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert "signs compares networks with the first one; pass two or more" in capsys.readouterr().err


def test_a_plane_through_three_runs(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(read("digits/cross_entropy", ["epochs=1", FEW, CNN, "seed=1"]), tmp_path / "third", How("cpu", quiet=True))
    words = ["probe", runs[0], "--what", "landscape", "--through", f"{runs[1]},{tmp_path / 'third'}", "--grid", "3"]
    assert run([*words, "-o", str(tmp_path / "out"), "--batch", "16", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["landscape"]["models"][0]
    assert found["marks"][:2] == [[0, 0], [1, 0]] and found["marks"][2][1] > 0
    assert not list((tmp_path / "out" / "landscape").glob("*.rows")), "finished rows are in the result"
    assert run(["probe", *runs, *words[2:], "-o", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert "--through takes two checkpoints" in capsys.readouterr().err


def test_without_a_folder_results_stay_with_the_run(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", runs[0], "--what", "fourier", *SMALL, "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "Which frequencies do the feature maps hold?" in printed and "browser" not in printed
    (kept,) = (Path(runs[0]) / "probe" / "fourier").glob("*.safetensors")
    assert any(name.startswith("log_amplitude.") for name in load_file(kept))
    assert run(["predict", runs[0], "-o", str(Path(runs[0]).parent / "p.npz"), "--device", "cpu"]) == 0


def test_probes_that_do_not_apply_are_reported_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["epochs=1", "network={name='mlp', hidden=[8], batch_norm=false}"]
    train(read("digits/cross_entropy", settings), tmp_path / "mlp", How("cpu", quiet=True))
    base = ["probe", str(tmp_path / "mlp"), *SMALL, "--device", "cpu"]
    assert run([*base, "--what", "variance,fourier,hardness,hessian", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "has no feature maps" in found["variance"]["refused"] and "--keep-epochs" in found["hardness"]["refused"]
    assert "has no feature maps" in found["fourier"]["refused"] and found["hessian"]["models"][0]["largest"]
    assert run([*base, "--what", "fourier"]) == 2
    assert "has no feature maps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--what", "hesian"], "did you mean 'hessian'"),
        (["--what", "variance", "--layers", "conv9"], "unknown layer 'conv9'"),
        (["--what", "attack", "--attack", "fgms"], "did you mean 'fgsm'"),
        (["--what", "attack", "--attack", "cw"], "has no budget"),
        (["--what", "attack", "--epsilon", "a"], "--epsilon 'a' must be finite numbers"),
        (["--what", "attack", "--epsilon", "8"], "budgets are of pixels, in 0 … 1"),
        (["--what", "attack", "--ensemble", "swag"], "--ensemble 'swag'"),
        (["--what", "hessian", "--method", "powr"], "did you mean 'power'"),
        (["--what", "fourier", "-o", "{run}"], "holds a training run"),
    ],
)
def test_what_a_user_can_get_wrong(
    arguments: list[str], says: str, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(run=runs[1]) for word in arguments]
    place = [] if "-o" in words else ["-o", str(tmp_path / "out")]
    assert run(["probe", runs[1], *words, *place, "--batches", "1", "--batch", "8", "--device", "cpu"]) == 2
    printed = capsys.readouterr()
    assert says in printed.err and "Traceback" not in printed.err and printed.out == ""
    assert not (tmp_path / "out").exists()
