"""Common first mistakes: one line says what to type instead."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import calibrant
from calibrant.cli import run
from calibrant.errors import CalibrantError

Z = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = Z.argmax(1)
NET = torch.nn.Sequential(torch.nn.Linear(3, 3))
TABLE = pa.table({"prob_cat": [0.2, 0.7], "prob_dog": [0.8, 0.3], "species": ["dog", "cat"]})

SLIPS: dict[str, tuple[Callable[[], Any], str]] = {
    "a path": (lambda: calibrant.evaluate("mine.npz"), r"read it first: calibrant\.read\('mine\.npz'\)"),
    "a path to fit": (lambda: calibrant.fit("temperature", Path("mine.npz")), r"calibrant\.read\('mine\.npz'\)"),
    "logits first": (lambda: calibrant.Predictions(Z, Y), r"with `calibrant\.predictions\(logits, labels\)`"),
    "no method": (lambda: calibrant.fit(Z, Y), r"calibrant\.fit\('auto', logits, labels\)"),
    "one row": (lambda: calibrant.evaluate(Z[0], Y), "3 rows of scores but 60 labels"),
    "a table's label": (
        lambda: calibrant.evaluate(TABLE),
        r"columns found: species, prob_cat, prob_dog; .*labels_key='…'",
    ),
    "labels in mixup": (
        lambda: calibrant.transforms.Mixup().mixed(Z, Y, torch.Generator()),
        r"pass calibrant\.targets\.OneHot\(classes\)\(labels\)",
    ),
    "one model for an ensemble": (lambda: calibrant.DeepEnsemble(NET), "a list of models, and this is one Sequential"),
    "a list for SWA": (lambda: calibrant.SWA([NET, NET]), "list is not a torch.nn.Module"),
    "a model to export": (lambda: calibrant.export(NET, "model.json"), r"not Sequential .*calibrant\.to_onnx"),
    "inputs without labels": (lambda: calibrant.predict(NET, Z), r"expected \(x, labels\)"),
    "pairs that do not fit": (lambda: calibrant.predict(NET, (Z, Y[:5])), "60 inputs but 5 labels"),
    "arrays for a loss": (lambda: calibrant.losses.Focal()(Z.numpy(), Y), "which has no gradient; pass the network's"),
    "labels as text for a loss": (
        lambda: calibrant.losses.Focal()(Z, np.array(["a"] * 60)),
        "number the classes from 0",
    ),
    "data without labels": (lambda: calibrant.train("digits/focal", data=Z), r"each must be \(x, y\)"),
    "data of two lengths": (lambda: calibrant.train("digits/focal", data=(Z, Y[:5])), "60 items and 5 labels"),
    "no data": (lambda: calibrant.predict(NET, None), r"NoneType, which holds no inputs; pass a loader of"),
    "no map to export": (lambda: calibrant.to_onnx("m.onnx", NET, None, Z), "needs a fitted map .*, not NoneType"),
    "gamma as text": (lambda: calibrant.losses.Focal(gamma="3"), "gamma='3' must be a number"),
    "a norm as text": (lambda: calibrant.losses.LpNorm(p="1"), "p='1' must be a number"),
    "a share as text": (lambda: calibrant.transforms.Mixup(alpha="0.2"), "alpha='0.2' must be a number"),
    "a negative gamma": (lambda: calibrant.losses.Focal(gamma=-1), "gamma must be 0 or more, got -1; 0 is"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_says_what_to_type(slip: str) -> None:
    wrong, remedy = SLIPS[slip]
    with pytest.raises(CalibrantError, match=remedy):
        wrong()


@pytest.mark.parametrize(
    ("guess", "meant"),
    [("acc", "accuracy"), ("AUC", "auroc"), ("log_loss", "nll"), ("expected_calibration_error", "ece"), ("ECE", "ece")],
)
def test_other_peoples_names_of_metrics(guess: str, meant: str) -> None:
    report = calibrant.evaluate(Z, Y, intervals=False)
    with pytest.raises(CalibrantError, match=f"did you mean '{meant}'"):
        report[guess]
    with pytest.raises(AttributeError, match=f"a Report has no '{guess}'; did you mean '{meant}'"):
        getattr(report, guess)


def test_a_pair_of_arrays_is_a_loader() -> None:
    found = calibrant.predict(NET, (Z, Y))
    assert torch.equal(found.labels, Y) and torch.allclose(found.logits, NET(Z))
    assert torch.equal(calibrant.predict(NET, [(Z, Y)]).logits, found.logits)


def test_a_pair_of_arrays_is_a_data_set() -> None:
    how = calibrant.training.How(device="cpu", quiet=True)
    recipe = calibrant.training.read("digits/focal", ["epochs=2"])
    found = []
    for data in (torch.utils.data.TensorDataset(Z, Y), (Z, Y), (Z.numpy(), Y.numpy())):
        net = torch.nn.Linear(3, 3)
        torch.nn.init.eye_(net.weight)
        torch.nn.init.zeros_(net.bias)
        found.append(calibrant.train(recipe, data=data, network=net, how=how)["metrics"])
    assert found[0] == found[1] == found[2] and found[0]["test"]["n"] == 12


@pytest.mark.parametrize("loss", [calibrant.losses.Focal(), calibrant.losses.MMCE()])
def test_labels_of_a_loss_may_be_arrays(loss: Callable[..., torch.Tensor]) -> None:
    assert torch.equal(loss(Z, Y.numpy()), loss(Z, Y)) and torch.equal(loss(Z, Y.tolist()), loss(Z, Y))


def test_a_dataset_is_a_loader_and_leaves_the_random_generator_alone() -> None:
    data, before = torch.utils.data.TensorDataset(Z, Y), torch.get_rng_state()
    found = calibrant.predict(NET, data)
    assert torch.equal(found.labels, Y) and torch.allclose(found.logits, NET(Z))
    assert torch.equal(before, torch.get_rng_state())
    sigma = [calibrant.PEP.fit(NET, given, members=2).sigma for given in (data, (Z, Y))]
    assert sigma[0] == sigma[1] and len(calibrant.predict(NET, torch.utils.data.Subset(data, range(5)))) == 5
    with pytest.raises(CalibrantError, match="this Subset has no items"):
        calibrant.predict(NET, torch.utils.data.Subset(data, []))


def test_a_comparison_has_its_metrics_as_attributes_and_prints_points() -> None:
    comparison = calibrant.compare(Z, 3 * Z, Y)
    assert comparison.nll is comparison["nll"]
    assert " pp" in repr(comparison) and "−" in repr(comparison) and "-0" not in repr(comparison)
    with pytest.raises(AttributeError, match="a Comparison has no 'NLL'; did you mean 'nll'"):
        comparison.NLL  # noqa: B018


def test_an_ensemble_says_what_it_is() -> None:
    assert repr(calibrant.DeepEnsemble([NET, NET])) == "DeepEnsemble of 2 networks (Sequential)"
    assert repr(calibrant.SWA(NET)) == "SWA of 1 network (Sequential)"


def test_decisions_say_how_many_are_accepted() -> None:
    assert repr(calibrant.decide(Z, Y, accept=0.5)(Z)) == "60 decisions: 50.0% accepted"
    shown = repr(calibrant.decide(Z, Y, set_coverage=0.9)(Z))
    assert "classes in a set" in shown and "tensor" not in shown


def test_tab_completion_shows_public_names_only() -> None:
    assert set(dir(calibrant)) == {*calibrant.__all__, *calibrant._PACKAGES, "__version__"}


COMMANDS = {
    "audit semicolons.csv": "the columns are separated by ';'; save the file with commas",
    "audit classes.csv --labels-key species": "or prob_cat, prob_dog",
    "audit good.csv --by hospital": "no column 'hospital' for group; columns found: label, prob_0, prob_1\n",
    "audit good.csv --plan 0.02 --no-intervals": "--plan needs intervals; leave out --no-intervals",
    "predict good.csv -o p.npz": "timm:NAME, torchvision:NAME or package.module:factory[@WEIGHTS]\n",  # no suggestion
    "predict torch.nn:Linear --data digits -o p.npz": "called without arguments, failed with TypeError",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_slip_on_the_command_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("semicolons.csv").write_text("label;prob_0;prob_1\n0;0.9;0.1\n")
    Path("classes.csv").write_text("species,cat,dog\ncat,0.9,0.1\n")
    Path("good.csv").write_text("label,prob_0,prob_1\n0,0.9,0.1\n1,0.2,0.8\n")
    assert run(command.split()) == 2
    assert COMMANDS[command] in capsys.readouterr().err


def test_the_next_command_reads_the_files_as_this_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command after `next:` names the labels, the axis of the classes and the ignored label."""
    monkeypatch.chdir(tmp_path)
    maps = torch.randint(0, 3, (4, 5, 5), generator=torch.Generator().manual_seed(1))
    np.save("z.npy", torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(2)).numpy())
    np.save("y.npy", maps.where(torch.rand(4, 5, 5) > 0.1, 255).numpy())
    assert run(["audit", "z.npy", "y.npy", "--class-axis", "1", "--ignore-index", "255", "--no-intervals"]) == 0
    command = capsys.readouterr().out.split("next: calibrant ")[1].splitlines()[0]
    assert command == "audit z.npy --class-axis 1 --ignore-index 255 --labels y.npy"
    assert run([*shlex.split(command), "--no-intervals"]) == 0


def test_a_map_fitted_on_probabilities_is_called_with_them() -> None:
    prob, given = torch.softmax(Z, 1), calibrant.predictions(Z, Y)
    fitted = calibrant.fit("temperature", probs=prob, labels=Y)
    assert torch.allclose(torch.softmax(fitted(probs=prob), 1), torch.softmax(fitted(Z), 1), atol=1e-6)
    assert torch.equal(fitted(probs=prob.numpy()), fitted(probs=prob))
    for wrong, remedy in [((given,), r"map\.predictions\(p\)"), ((), "either logits or probs=")]:
        with pytest.raises(CalibrantError, match=remedy):
            fitted(*wrong)
    with pytest.raises(CalibrantError, match="probs in row 0"):
        fitted(probs=Z)


@pytest.mark.parametrize("fitted", [calibrant.fit("temperature", Z, Y), calibrant.decide(Z, Y, accept=0.5)])
def test_probabilities_in_place_of_logits_are_noticed(fitted: Callable[..., Any]) -> None:
    with pytest.warns(calibrant.CalibrantWarning, match="look like probabilities"):
        fitted(Z.softmax(1))
    fitted(Z.log_softmax(1))  # warnings are errors here
