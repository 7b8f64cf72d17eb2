"""The callback in a real Lightning training of a tiny network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.integrations.lightning import Calibration
from calibrant.nn import load_weights


class Net(L.LightningModule):
    def __init__(self, targets: Any = None, returns: bool = False) -> None:
        super().__init__()
        self.net, self.targets, self.returns = nn.Linear(4, 3), targets, returns
        self.loss = calibrant.losses.Focal(gamma=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        return self.loss(self(x), y if self.targets is None else self.targets(y))

    def validation_step(self, batch: Any, index: int) -> Any:
        logits = self(batch[0])
        return {"logits": logits} if self.returns else None

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.5)


@pytest.fixture
def data() -> TensorDataset:
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long())


@pytest.fixture
def trained(tmp_path: Path, data: TensorDataset) -> Any:
    def run(net: Net, **options: Any) -> tuple[L.Trainer, Calibration]:
        callback = Calibration(3, **options)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        trainer = L.Trainer(
            max_epochs=2,
            accelerator="cpu",
            default_root_dir=tmp_path,
            logger=L.pytorch.loggers.TensorBoardLogger(tmp_path, "events"),
            callbacks=[callback],
            log_every_n_steps=1,
            **quiet,
        )
        trainer.fit(net, DataLoader(data, 64), DataLoader(data, 100))
        return trainer, callback

    return run


# Lightning's own warnings (few workers, torch's deprecations) are not ours to fix; ours stay errors
pytestmark = pytest.mark.filterwarnings("ignore", "error::calibrant.errors.CalibrantWarning")


@pytest.mark.parametrize("returns", [False, True])
def test_the_panel_is_logged_with_a_diagram(returns: bool, trained: Any, data: TensorDataset, tmp_path: Path) -> None:
    net = Net(returns=returns)
    trainer, _ = trained(net)
    own = calibrant.evaluate(net(data.tensors[0]).detach(), data.tensors[1], intervals=False)
    for name in ("accuracy", "nll", "brier", "ece", "gap", "auroc"):
        assert float(trainer.logged_metrics[f"val_{name}"]) == pytest.approx(own[name].value, abs=1e-6)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(trainer.logger.log_dir).Reload()  # type: ignore[union-attr, no-untyped-call]
    assert len(events.Images("val_reliability")) == 2  # type: ignore[no-untyped-call]


def test_a_calibrated_checkpoint_is_written(trained: Any, data: TensorDataset, tmp_path: Path) -> None:
    net = Net()
    trained(net)
    again = load_weights(Net(), tmp_path / "calibrated" / "weights.safetensors")
    fitted = calibrant.load(tmp_path / "calibrated" / "map")
    x = data.tensors[0]
    assert torch.equal(again(x), net(x))
    assert calibrant.attach(again, fitted)(x).shape == (300, 3)
    assert fitted.record.split == "validation"


def test_adaptive_targets_learn_from_the_validation(trained: Any, data: TensorDataset) -> None:
    targets = calibrant.targets.AdaLS(classes=3, alpha=1.0)
    net = Net(targets)
    _, callback = trained(net, targets=targets, method=None)
    assert targets.trajectory.shape == (3, 1)  # the start, and one step per epoch
    again = calibrant.targets.AdaLS(classes=3, alpha=1.0)
    Calibration(3, targets=again).load_state_dict(callback.state_dict())
    assert torch.equal(again.trajectory, targets.trajectory)
