"""The panel in a training loop equals `evaluate`, over batches, resets and processes."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection

from calibrant.errors import InputError
from calibrant.metrics.evaluate import evaluate
from calibrant.metrics.torchmetrics_adapter import CalibrationPanel


def data(n: int = 501, k: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, k)) * 3
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    return torch.from_numpy(z).float(), torch.from_numpy(y)


def test_batches_give_the_values_of_evaluate() -> None:
    z, y = data()
    wanted = evaluate(z, y, intervals=False)
    panel = CalibrationPanel(num_classes=5)
    for a, b in zip(z.split(64), y.split(64), strict=True):
        panel.update(a, b)
    found = panel.compute()
    assert set(found) == set(wanted)
    assert all(abs(found[name] - wanted[name].value) < 1e-12 for name in found)  # type: ignore[operator]
    panel.reset()
    with pytest.raises(InputError, match="before any update"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchmetrics warns first
        panel.compute()
    panel.update(z[:10], y[:10])
    assert abs(panel.compute()["nll"] - evaluate(z[:10], y[:10], intervals=False)["nll"].value) < 1e-12  # type: ignore[operator]


def test_fixed_size_is_within_its_bounds() -> None:
    z, y = data()
    wanted = evaluate(z, y, intervals=False)
    panel = CalibrationPanel(num_classes=5, exact=False)
    for a, b in zip(z.split(100), y.split(100), strict=True):
        panel.update(a, b)
    for name, found in panel.compute().items():
        assert abs(found - wanted[name].value) < 1e-4, name  # type: ignore[operator]
    assert sum(v.numel() for v in panel.metric_state.values()) < 3_000_000


def test_forward_gives_the_batch_and_a_collection_takes_it() -> None:
    z, y = data(100)
    panel = CalibrationPanel(5, metrics=["ece", "accuracy"])
    here = panel(z[:50], y[:50])
    assert abs(here["accuracy"] - float((z[:50].argmax(1) == y[:50]).double().mean())) < 1e-12
    together = MetricCollection({"val": panel})
    together.update(z[50:], y[50:])
    assert abs(together.compute()["ece"] - evaluate(z, y, intervals=False)["ece"].value) < 1e-12  # type: ignore[operator]


def test_missing_values_are_nan_and_mistakes_are_named() -> None:
    panel = CalibrationPanel(3, metrics=["auroc"])
    panel.update(2 * torch.eye(3), torch.arange(3))
    assert math.isnan(panel.compute()["auroc"])
    with pytest.raises(InputError, match="4 classes, the panel was made for 3"):
        panel.update(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(InputError, match="row 1"):
        panel.update(torch.zeros(2, 3), torch.tensor([0, 7]))


@pytest.mark.parametrize("exact", [True, False])
def test_states_of_two_processes_join_to_that_of_one(exact: bool) -> None:
    """`merge_state` joins states by the same rules as torchmetrics' synchronisation; the shares are unequal."""
    z, y = data()
    alone, first, second = (CalibrationPanel(5, exact=exact) for _ in range(3))
    alone.update(z, y)
    for part in torch.arange(300).split(64):
        first.update(z[part], y[part])
    second.update(z[300:], y[300:])
    first.merge_state(second)
    assert first.compute() == pytest.approx(alone.compute(), abs=1e-12)
