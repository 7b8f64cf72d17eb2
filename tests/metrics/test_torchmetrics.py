"""The panel in a training loop equals `evaluate`, over batches, resets and processes."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection

from calibrant.errors import InputError
from calibrant.metrics.evaluate import evaluate
from calibrant.metrics.torchmetrics_adapter import CalibrationPanel
from tests.killed import ENDED, begin


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


ONE_OF_TWO = """
import json, os, sys
import torch, torch.distributed as dist
from tests.metrics.test_torchmetrics import data
from calibrant.metrics.torchmetrics_adapter import CalibrationPanel

rank, folder = int(sys.argv[1]), sys.argv[2]
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
z, y = data()
rows = torch.arange(300) if rank == 0 else torch.arange(300, len(y))  # unequal shares
out = {}
for exact in (True, False):
    panel = CalibrationPanel(5, exact=exact)
    for part in rows.split(64):
        panel.update(z[part], y[part])
    out[str(exact)] = panel.compute()
open(f"{folder}/found-{rank}.json", "w").write(json.dumps(out))
dist.destroy_process_group()
"""


def test_two_gloo_processes_equal_one(tmp_path: Path) -> None:
    started = [begin(ONE_OF_TWO, str(rank), str(tmp_path)) for rank in (0, 1)]
    assert [heard.recv() for _, heard in started] == [ENDED, ENDED]
    z, y = data()
    for rank in (0, 1):
        found = json.loads((tmp_path / f"found-{rank}.json").read_text())
        for exact in (True, False):
            alone = CalibrationPanel(5, exact=exact)
            alone.update(z, y)
            for name, wanted in alone.compute().items():
                assert abs(found[str(exact)][name] - wanted) < 1e-12, (name, exact)
