"""Networks that others trained are judged on the half of the test set on which nothing was fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrant import files
from calibrant.bench import Store
from calibrant.bench.downloaded import Downloaded
from calibrant.bench.place import Place
from calibrant.bench.run import graph
from calibrant.bench.steps import Measure, Predict, trained
from calibrant.data import load
from calibrant.errors import FileError
from calibrant.papers import experiments
from calibrant.papers.experiment import SMOKE_SIZES
from calibrant.training import How
from calibrant.training.networks import network_of
from calibrant.types import Split
from tests.bench.measuring import measure
from tests.bench.stand_ins import publish, stand_in

RESULTS = Path(__file__).resolve().parents[2] / "results"
ROWS = experiments("pep/networks")


def test_nothing_is_trained_and_each_seed_is_another_halving(tmp_path: Path) -> None:
    steps = graph([(ROWS[0], seed) for seed in range(2)], "paper", Place(tmp_path / "results", tmp_path / "runs"))
    assert [type(s) for s in steps] == 2 * [Downloaded, Predict, Measure]
    assert len({s.key for s in steps}) == 6
    others = [e for e in ROWS if e.recipe.network == ROWS[0].recipe.network] + [replace(ROWS[0], published=None)]
    assert len({trained(e, 0, "paper", Place(tmp_path, tmp_path)).key for e in others}) == len(others)


def test_a_published_network_predicts_both_halves_with_its_weights(tmp_path: Path) -> None:
    made = stand_in(ROWS[0])
    publish(made, tmp_path)
    how = How("cpu", root=tmp_path, quiet=True)
    cell = measure(made, 3, "smoke", Store(tmp_path / "results"), tmp_path / "runs", how)
    step = trained(made, 3, "smoke", Place(tmp_path / "results", tmp_path / "runs", how))
    assert isinstance(step, Downloaded)
    test = load("digits", sizes=made.at(3, "smoke").data.sizes)[Split.TEST]
    held, judged = torch.randperm(test.n, generator=torch.Generator().manual_seed(3)).tensor_split(2)
    network = network_of(made.at(3, "smoke"), 10, (1, 8, 8), seed=0).eval()
    for name, items in (("calibration", held), ("test", judged)):
        predictions = files.read(step.folder / f"{name}.npz")
        with torch.no_grad():
            expected = network((test.x[items].float() / 255 - 0.5) / 1.0)
        assert predictions.logits is not None and torch.equal(predictions.labels, test.y[items])
        assert torch.allclose(predictions.logits, expected, atol=1e-5)
    assert cell.seconds == 0 and not cell.timed and len(cell.extras["weights_sha256"]) == 64


def test_missing_weights_are_reported_with_their_path(tmp_path: Path) -> None:
    how = How("cpu", root=tmp_path, quiet=True)
    with pytest.raises(FileError, match=r"weights/cifar10_resnet20_akamaster\.npz is missing; put"):
        measure(stand_in(ROWS[0]), 0, "smoke", Store(tmp_path / "results"), tmp_path / "runs", how)
    assert not (tmp_path / "results").exists(), "missing data is no failed run"


def test_published_predictions_are_halved_like_a_network_and_checked_against_the_labels(tmp_path: Path) -> None:
    made = stand_in(experiments("scorecard/networks/cifar10_lenet5_netcal")[0])
    publish(made, tmp_path)
    place = Place(tmp_path / "results", tmp_path / "runs", How("cpu", root=tmp_path, quiet=True))
    step = trained(made, 1, "smoke", place)
    step.run(None)
    whole, data = files.read(tmp_path / "logits" / "cifar10_lenet5_netcal.npz"), step.data()
    halves = [data[split].index for split in (Split.CALIBRATION, Split.TEST)]
    assert sorted(torch.cat(halves).tolist()) == load("digits", sizes=SMOKE_SIZES)[Split.TEST].index.tolist()
    for split, items in zip((Split.CALIBRATION, Split.TEST), halves, strict=True):
        found = files.read(step.folder / f"{split.value}.npz")
        assert found.logits is not None and whole.logits is not None
        assert torch.equal(found.logits, whole.logits[items]) and torch.equal(found.labels, data[split].y)
    publish(made, tmp_path, moved=1)
    with pytest.raises(FileError, match="labels of .* are not those of the test set of digits"):
        trained(made, 2, "smoke", place).run(None)
