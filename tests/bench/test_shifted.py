"""Cells beyond the clean test set: corruptions, foreign items, attacks, pools of trainings, videos."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.bench import Store
from calibrant.bench.ensembles import Loaded
from calibrant.bench.place import Place
from calibrant.bench.run import graph
from calibrant.bench.steps import Measure, Predict
from calibrant.bench.train import Train
from calibrant.bench.video import measured as video
from calibrant.data.records import Data, Part
from calibrant.ensembles import MCDropout
from calibrant.errors import InputError
from calibrant.executors import InProcess, execute
from calibrant.files import read
from calibrant.functional.pooling import pool
from calibrant.metrics.evaluate import evaluate
from calibrant.nn import build
from calibrant.papers import AS_TRAINED, Experiment, experiments
from calibrant.shifts import SUBSETS, corrupt
from calibrant.training import load as load_run
from calibrant.training import read as recipe
from calibrant.training.run_folder import Trained
from calibrant.training.settings import Choice
from calibrant.types import Split
from tests.bench.measuring import measure

PLAIN = Experiment(
    "test",
    "t1",
    "plain",
    recipe("digits/cross_entropy", ["network.hidden=[16]", "network.dropout=0.2"]),
    calibrators=("temperature",),
    metrics=("accuracy", "nll", "ece"),
)


def here(tmp_path: Path) -> Place:
    return Place(tmp_path / "results", tmp_path / "runs")


def test_corruptions_are_measured_of_the_network_its_ensemble_and_after_a_calibrator(tmp_path: Path) -> None:
    dropout = Choice("dropout", {"members": 3})
    asked = replace(PLAIN, shifts=("corruptions",), ensembles=(dropout,))
    cell = measure(asked, 0, "smoke", Store(tmp_path / "results"), tmp_path / "runs")
    sets = ["corruptions", "corruptions_15", *(f"intensity_{s}" for s in range(1, 6))]
    variants = ["", "+temperature", "+dropout", "+dropout+temperature"]
    clean = {AS_TRAINED, "temperature", "dropout", "dropout+temperature"}
    assert set(cell.measured) == clean | {f"{s}{v}" for s in sets for v in variants}
    assert set(cell.extras["by_type"]) == set(SUBSETS["19"][:2]) == set(cell.extras["by_type_dropout"])
    by = [cell.measured[f"intensity_{s}"]["accuracy"] for s in range(1, 6)]
    assert cell.measured["corruptions"]["accuracy"] == pytest.approx(np.mean(by))
    assert [len(cell.extras["curve"][m]) for m in ("nll", "ece")] == [2, 2], "at smoke scale, an ensemble is a pair"
    assert cell.extras["curve"]["nll"][-1] == pytest.approx(cell.measured["dropout"]["nll"], rel=1e-6)
    # by hand: the first corruption at its worst
    run = load_run(tmp_path / "runs" / cell.extras["run"])
    data = here(tmp_path).data(run.recipe)[Split.TEST]
    x = corrupt(data.x, SUBSETS["19"][0], 5, 0, index=data.index).float() / 255
    mean, std = (torch.tensor(v)[:, None, None] for v in (run.mean, run.std))
    with torch.no_grad():
        said = run.members[0].eval()((x - mean) / std).argmax(1)
    other = corrupt(data.x, SUBSETS["19"][1], 5, 0, index=data.index).float() / 255
    with torch.no_grad():
        also = run.members[0].eval()((other - mean) / std).argmax(1)
    right = [(p == data.y).double().mean().item() for p in (said, also)]
    assert cell.measured["intensity_5"]["accuracy"] == pytest.approx(np.mean(right))


def test_a_pool_is_one_predictor_with_the_variance_of_its_trainings(tmp_path: Path) -> None:
    asked = replace(PLAIN, shifts=("corruptions",), pool=2)
    alone = replace(asked, pool=1, row="alone")
    place = here(tmp_path)
    steps = graph([(asked, 0), (alone, 0), (alone, 1)], "smoke", place)
    kinds = [type(s) for s in steps]
    assert (kinds.count(Train), kinds.count(Predict), kinds.count(Measure)) == (2, 2, 3), "trainings are shared"
    assert [o.ending for o in execute(steps, InProcess())] == ["done"] * 7
    [cell] = place.store.cells("test/t1/plain")
    files = [read(place.runs / run / "test.npz") for run in cell.extras["runs"]]
    z = torch.stack([p.logits for p in files if p.logits is not None])
    together = evaluate(replace(files[0], logits=pool(z), raw=False), metrics=("nll",), intervals=False)
    assert cell.measured[AS_TRAINED]["nll"] == pytest.approx(together["nll"].value, rel=1e-9)
    p = torch.softmax(z.double(), -1).numpy()[:, np.arange(files[0].n), files[0].labels.numpy()]
    assert cell.measured[AS_TRAINED]["variance"] == pytest.approx(np.var(p, axis=0, ddof=1).mean())
    assert {"variance", "ece"} <= set(cell.measured["corruptions"]) and "variance" in cell.measured["intensity_3"]
    with pytest.raises(InputError, match="no ensembles"):
        measure(replace(asked, ensembles=(Choice("pep"),)), 0, "smoke", place.store, place.runs)


def test_foreign_items_held_out_classes_attacks_and_sequences(tmp_path: Path) -> None:
    few = PLAIN.recipe.with_settings({"data.name": "digits[0-4]"})
    asked = replace(PLAIN, recipe=few, shifts=("ood", "attack:fgsm", "perturbations"))
    cell = measure(asked, 0, "smoke", Store(tmp_path / "results"), tmp_path / "runs")
    for variant in (AS_TRAINED, "temperature"):
        assert {"entropy_kl", "auroc_entropy", "nll"} <= set(cell.measured[variant])
    attack = cell.measured["attack_fgsm"]
    assert attack["items"] == 32 and 0 <= attack["success_rate"] <= 1
    moved = [v for v in cell.measured if v.startswith("perturbation_")]
    assert len(moved) == 2 and {"consistency", "flip_rate"} <= set(cell.measured[moved[0]])
    for metric in ("consistency", "cross_entropy_consistency"):  # what Table E.3 has
        each = [cell.measured[name][metric] for name in moved]
        assert cell.measured["perturbations"][metric] == pytest.approx(np.mean(each))
    [steady] = [e for e in experiments("ss/table_e3") if e.row == "cifar10_resnet18_dropout"]
    assert steady.reported["perturbations+dropout"] == {"consistency": 0.982, "cross_entropy_consistency": 0.0129}


def test_the_reference_is_trained_as_a_step_and_normalises_errors(tmp_path: Path) -> None:
    asked = replace(PLAIN, shifts=("corruptions",), reference=PLAIN.recipe, calibrators=())
    place = here(tmp_path)
    steps = graph([(asked, 0)], "smoke", place)
    assert [type(s) for s in steps] == [Train, Predict, Measure], "the reference is the network itself"
    assert [o.ending for o in execute(steps, InProcess())] == ["done"] * 3
    [cell] = place.store.cells()
    for metric in ("mce", "mcnll", "mcece"):
        assert cell.measured["corruptions"][metric] == pytest.approx(1.0)
    [figure] = [e for e in experiments("ss/figure9") if e.row == "cifar100_resnet18"]
    assert figure.reference is not None and figure.reference.network.name == "alexnet"


def test_a_video_is_measured_frame_by_frame() -> None:
    g = torch.Generator().manual_seed(0)

    def part(n: int, split: Split) -> Part:
        x = torch.randint(0, 256, (n, 3, 24, 32), generator=g, dtype=torch.uint8)
        return Part(x, torch.randint(-1, 4, (n, 24, 32), generator=g), torch.arange(n), split)

    data = Data("frames", {Split.VALIDATION: part(18, Split.VALIDATION)}, tuple("abcd"), (3, 24, 32), None, None)
    network = build("unet", classes=4, size=(24, 32), width=8, dropout=0.5, seed=0).eval()
    [asked] = experiments("ss/table_e4/camvid_unet_dropout")
    trained = Trained((network,), asked.recipe, 1, tuple("abcd"), (3, 24, 32), None, None)
    predictors = {AS_TRAINED: network, "dropout": MCDropout(network, members=2, seed=0)}
    loaded = Loaded(Path("unused"), trained, 0, torch.device("cpu"), data)
    found = video(asked, predictors, loaded, smoke=True)
    assert list(found) == [AS_TRAINED, "dropout", "temporal"]
    frames = data[Split.VALIDATION]
    with torch.no_grad():
        z = network(frames.x[:12].float() / 255)
    known = frames.y[:12] >= 0
    right = (z.argmax(-1) == frames.y[:12])[known].double().mean().item()
    assert found[AS_TRAINED]["accuracy"][0] == pytest.approx(right)
    assert found["temporal"]["consistency"][0] > found["dropout"]["consistency"][0] - 1
    assert asked.settings(0, "paper")["block"] == 15


def test_the_training_items_are_measured_without_augmentation(tmp_path: Path) -> None:
    moved = PLAIN.recipe.with_settings({"augment": {"crop_padding": 2, "flip": True}})
    dropout = Choice("dropout", {"members": 2})
    asked = replace(PLAIN, recipe=moved, shifts=("train",), ensembles=(dropout,))
    cell = measure(asked, 0, "smoke", Store(tmp_path / "results"), tmp_path / "runs")
    run = load_run(tmp_path / "runs" / cell.extras["run"])
    part = here(tmp_path).data(run.recipe)[Split.TRAIN]
    mean, std = (torch.tensor(v)[:, None, None] for v in (run.mean, run.std))
    with torch.no_grad():
        z = run.members[0].eval()((part.x.float() / 255 - mean) / std)
    assert part.n == 512 and cell.measured["train"]["accuracy"] == (z.argmax(1) == part.y).double().mean().item()
    nll = torch.nn.functional.cross_entropy(z.double(), part.y).item()
    assert cell.measured["train"]["nll"] == pytest.approx(nll, rel=1e-5)
    assert cell.measured["train+dropout"]["nll"] != cell.measured["train"]["nll"]
    with pytest.raises(InputError, match="data sets of its own"):
        measure(replace(asked, ensembles=(), pool=2), 0, "smoke", Store(tmp_path / "results"), tmp_path)
