"""Jobs of a newcomer's first hour, each in at most five lines of user code. The lines are what a user would type."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
import torch
from torch import Tensor

import calibrant
from calibrant.errors import UnknownNameError

JOBS: list[Callable[..., None]] = []


def job(function: Callable[..., None]) -> Callable[..., None]:
    """Mark a test as a job, whose statements without assertions may be at most five lines."""
    JOBS.append(function)
    return function


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def logits() -> Tensor:
    return 4 * torch.randn(1200, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def labels(logits: Tensor) -> Tensor:
    """The right temperature is 3."""
    return torch.multinomial(torch.softmax(logits / 3, -1), 1, generator=torch.Generator().manual_seed(1))[:, 0]


def test_every_job_is_five_lines_or_fewer() -> None:
    for each in JOBS:
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.FunctionDef)
        code = [node for node in body.body if not isinstance(node, ast.Assert)]
        lines = sum((node.end_lineno or 0) - node.lineno + 1 for node in code if not _is_text(node))
        assert lines <= 5, f"{each.__name__} takes {lines} lines"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@job
def test_is_my_model_overconfident(logits: Tensor, labels: Tensor) -> None:
    report = calibrant.evaluate(logits, labels)
    print(report)
    assert report.verdict.startswith("strongly overconfident: says ")
    assert report.ece.value == report["ece"].value
    assert len(repr(report).splitlines()) == 7 and "ece" in repr(report)


@job
def test_show_it_in_a_notebook(logits: Tensor, labels: Tensor) -> None:
    cell = calibrant.evaluate(logits, labels)._repr_html_()
    assert "<table>" in cell and "overconfident" in cell


@job
def test_write_the_report_for_a_browser(logits: Tensor, labels: Tensor) -> None:
    report = calibrant.evaluate(logits, labels)
    report.to_html("report.html")
    assert "<svg" in Path("report.html").read_text() and "strongly overconfident" in Path("report.html").read_text()


@job
def test_numbers_as_a_data_frame(logits: Tensor, labels: Tensor) -> None:
    pytest.importorskip("pandas")
    table = calibrant.evaluate(logits, labels).to_pandas()
    assert table.loc["ece", "low"] < table.loc["ece", "value"] < table.loc["ece", "high"]


@job
def test_a_guessed_name_says_what_was_meant(logits: Tensor, labels: Tensor) -> None:
    report = calibrant.evaluate(logits, labels, intervals=False)
    with pytest.raises(UnknownNameError, match="did you mean 'ece'?"):
        report["ECE"]
    assert meant("audit") == "evaluate" and meant("FocalLoss") == "losses.Focal"
    assert meant("deep_ensemble") == "DeepEnsemble" and meant("label_smoothing") == "targets.Smoothing"


def meant(name: str) -> str:
    with pytest.raises(AttributeError) as error:
        getattr(calibrant, name)
    return str(error.value).partition("did you mean calibrant.")[2].removesuffix("?")


@job
def test_which_hospital_is_worst(logits: Tensor, labels: Tensor) -> None:
    hospital = ["north", "south", "west"] * 400
    report = calibrant.evaluate(logits, labels, by=hospital)
    print(report.by)
    assert report.by["west"].report.n == 400 and "by group" in repr(report)


@job
def test_fix_it_and_see_that_it_helped(logits: Tensor, labels: Tensor) -> None:
    fitted = calibrant.fit("temperature", logits[:600], labels[:600])
    comparison = calibrant.compare(logits[600:], fitted(logits[600:]), labels[600:])
    print(fitted, comparison)
    assert "temperature" in repr(fitted) and "NLL on them" in repr(fitted)
    assert comparison.verdict.startswith("better in nll, brier, ece") and "better in nll" in repr(comparison)


@job
def test_save_predictions_and_read_them_again(logits: Tensor, labels: Tensor) -> None:
    calibrant.predictions(logits, labels, classes=["cat", "dog", "owl"], split="test").save("mine.npz")
    again = calibrant.read("mine.npz")
    assert again.n == 1200 and "1,200 items, 3 classes" in repr(again) and "cat, dog, owl" in repr(again)


@job
def test_put_the_fix_into_the_network(logits: Tensor, labels: Tensor) -> None:
    network = torch.nn.Linear(3, 3)
    fitted = calibrant.fit("temperature", logits, labels)
    calibrated = calibrant.attach(network, fitted)
    calibrant.export(fitted, "map.json")
    assert torch.allclose(calibrated(logits), fitted(network(logits)).float())
    assert "z_k / T" in Path("map.json").read_text()


@job
def test_accept_only_sure_answers(logits: Tensor, labels: Tensor) -> None:
    rule = calibrant.decide(calibrant.predictions(logits[:600], labels[:600]), accuracy=0.8)
    decisions = calibrant.attach(torch.nn.Identity(), rule)(logits[600:])
    assert "right at least 80% of the time" in repr(rule)
    assert 0 < float(decisions[1].double().mean()) < 1


@job
def test_average_my_networks(logits: Tensor, labels: Tensor) -> None:
    torch.manual_seed(0)
    ensemble = calibrant.DeepEnsemble([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
    predictions = ensemble.predict([(logits, labels)], split="test")
    assert predictions.n == 1200


@job
def test_ensemble_the_network_i_have(logits: Tensor, labels: Tensor) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    ensemble = calibrant.PEP.fit(network, (logits, labels))
    assert "NLL" in repr(ensemble) and "→" in repr(ensemble.certificate)
    assert isinstance(ensemble(logits), Tensor)


@job
def test_my_labels_are_words(logits: Tensor, labels: Tensor) -> None:
    words = [["cat", "dog", "owl"][label] for label in labels]
    report = calibrant.evaluate(logits, words, classes=["cat", "dog", "owl"])
    assert report.ece.value == calibrant.evaluate(logits, labels, intervals=False).ece.value
    assert report.conventions["classes"] == "cat, dog, owl"


@job
def test_my_predictions_are_a_data_frame(logits: Tensor, labels: Tensor) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(torch.softmax(logits, 1), columns=["prob_cat", "prob_dog", "prob_owl"])
    frame["species"] = [["cat", "dog", "owl"][label] for label in labels]
    report = calibrant.evaluate(frame, labels_key="species")
    assert report.verdict.startswith("strongly overconfident")


@job
def test_my_predictions_are_a_polars_frame(logits: Tensor, labels: Tensor) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(torch.softmax(logits, 1).numpy(), schema=["prob_cat", "prob_dog", "prob_owl"])
    frame = frame.with_columns(species=polars.Series([["cat", "dog", "owl"][label] for label in labels]))
    report = calibrant.evaluate(frame, labels_key="species")
    assert report.verdict.startswith("strongly overconfident")


@job
def test_my_predictions_are_an_arrow_table(logits: Tensor, labels: Tensor) -> None:
    columns = {f"logit_{name}": logits[:, i].numpy() for i, name in enumerate(["cat", "dog", "owl"])}
    table = pyarrow.table(columns | {"species": [["cat", "dog", "owl"][label] for label in labels]})
    fitted = calibrant.fit("temperature", table, labels_key="species")
    assert float(fitted.temperature) == pytest.approx(3, abs=0.4)  # type: ignore[attr-defined]


@job
def test_one_file_with_the_fix_for_the_server(logits: Tensor, labels: Tensor) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    network = torch.nn.Linear(3, 3).requires_grad_(False)
    fitted = calibrant.fit("temperature", network(logits), labels)
    calibrant.to_onnx("model.onnx", network, fitted, logits[:8])
    session = onnxruntime.InferenceSession("model.onnx")
    assert torch.allclose(
        torch.from_numpy(session.run(None, {session.get_inputs()[0].name: logits.numpy()})[0]),
        fitted(network(logits)).float(),
        atol=1e-4,
    )


@job
def test_what_is_left_under_noise() -> None:
    torch.manual_seed(0)
    images, labels = torch.rand(60, 1, 8, 8), torch.randint(0, 3, (60,))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    report = calibrant.stress(network, images, labels, types=["gaussian_noise"], severities=[1], intervals=False)
    assert "gaussian noise" in repr(report) and "<table>" in report._repr_html_()


@job
def test_targets_that_adapt_in_my_own_loop(logits: Tensor, labels: Tensor) -> None:
    model, targets = torch.nn.Linear(3, 3), calibrant.targets.AdaLS(classes=3, alpha=0.05)
    loss = calibrant.losses.CrossEntropy()
    loss(model(logits), targets(labels)).backward()
    targets.observe(1, calibrant.predict(model, (logits, labels), split="validation"))
    assert model.weight.grad is not None and targets.record()["epsilon"][-1] != [0.0]


@job
def test_what_the_trainer_of_hugging_face_reports(logits: Tensor, labels: Tensor) -> None:
    transformers = pytest.importorskip("transformers")
    compute_metrics = importlib.import_module("calibrant.integrations.transformers").compute_metrics
    found = compute_metrics(transformers.EvalPrediction(logits.numpy(), labels.numpy()))
    assert found["ece"] == pytest.approx(calibrant.evaluate(logits, labels, intervals=False).ece.value)


@job
def test_a_loss_in_my_own_loop(logits: Tensor, labels: Tensor) -> None:
    model, loss = torch.nn.Linear(3, 3), calibrant.losses.Focal(gamma=3)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    loss(model(logits), labels).backward()
    optimiser.step()
    assert loss(model(logits), labels).ndim == 0


@job
def test_mixup_in_my_own_loop(logits: Tensor, labels: Tensor) -> None:
    model, rng = torch.nn.Linear(3, 3), torch.Generator().manual_seed(0)
    x, q = calibrant.transforms.Mixup(0.2).mixed(logits, calibrant.targets.OneHot(3)(labels), rng)
    calibrant.losses.CrossEntropy()(model(x), q).backward()
    assert model.weight.grad is not None


@job
def test_numbers_after_each_epoch(logits: Tensor, labels: Tensor) -> None:
    panel = calibrant.CalibrationPanel(num_classes=3, metrics=["accuracy", "ece"])
    for x, y in zip(logits.split(100), labels.split(100), strict=True):
        panel.update(x, y)
    assert panel.compute()["ece"] == pytest.approx(calibrant.evaluate(logits, labels, intervals=False).ece.value)


@job
def test_train_my_own_network() -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    recipe = calibrant.training.read("digits/focal", ["epochs=3"])
    result = calibrant.train(recipe, network=network)
    assert result["metrics"]["test"]["accuracy"] > 0.5 and result.verdict in repr(result)


@job
def test_train_on_my_own_data(logits: Tensor, labels: Tensor) -> None:
    mine, network = torch.utils.data.TensorDataset(logits, labels), torch.nn.Linear(3, 3)
    recipe = calibrant.training.read("digits/cross_entropy", ["epochs=2"])
    result = calibrant.train(recipe, network=network, data=mine)
    assert result["metrics"]["validation"]["n"] > 0
