"""Calibration in Lightning: metrics and a reliability diagram per epoch, adaptive targets, and a fitted map at the end.

    trainer = L.Trainer(callbacks=[Calibration(num_classes=10)])

The validation logits come from `validation_step` if it returns a dict with `logits`; otherwise the callback calls
`module(x)` once more. Labels are the second entry of a batch, or its `labels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from safetensors.torch import save_file
from torch import Tensor

from calibrant.display import HEADLINE
from calibrant.ensembles.inputs import unpack
from calibrant.ensembles.prediction import predict
from calibrant.errors import InputError
from calibrant.files import atomic, hashed
from calibrant.functional.inputs import predictions
from calibrant.functional.model_output import logits_of
from calibrant.metrics.torchmetrics_adapter import CalibrationPanel
from calibrant.posthoc.fit import fit
from calibrant.protocols import Stateful, TargetPolicy
from calibrant.types import Predictions, Split


class Calibration(L.Callback):
    """Logs `metrics` and a reliability diagram after each validation, and updates adaptive `targets` (AdaLS).

    At the end it fits `method` on the validation data and writes `map/`, which `calibrant.load` reads, and
    `weights.safetensors` into `folder` (by default `calibrated` in the trainer's folder). `method=None` writes nothing.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        metrics: Sequence[str] = HEADLINE,
        prefix: str = "val_",
        diagram: bool = True,
        targets: TargetPolicy | None = None,
        method: str | None = "temperature",
        folder: str | Path | None = None,
    ) -> None:
        self.panel = CalibrationPanel(num_classes, metrics)
        self.prefix, self.diagram, self.targets, self.method, self.folder = prefix, diagram, targets, method, folder
        self.seen: list[tuple[Tensor, Tensor]] = []  # logits and labels of this validation, on the CPU

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.panel.to(pl_module.device).reset()
        self.seen.clear()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if trainer.sanity_checking or dataloader_idx > 0:
            return
        inputs, by_name, labels, _ = unpack(batch)
        if isinstance(outputs, Mapping) and "logits" in outputs:
            logits = outputs["logits"]
        else:
            with torch.no_grad():
                logits = logits_of(pl_module(*inputs, **by_name))
        self.panel.update(logits, labels)
        self.seen.append((logits.detach().float().cpu(), torch.as_tensor(labels).cpu()))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or not self.seen:
            return
        pl_module.log_dict({f"{self.prefix}{name}": value for name, value in self.panel.compute().items()})
        found = self._validation(pl_module)
        if self.targets is not None:
            self.targets.observe(trainer.current_epoch + 1, found)
        if self.diagram and trainer.is_global_zero:
            draw(trainer, f"{self.prefix}reliability", found)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.method is None or not trainer.is_global_zero:
            return
        loader = trainer.val_dataloaders
        if loader is None:
            raise InputError("there is no validation data to fit a map on; pass method=None to Calibration")
        first = loader[0] if isinstance(loader, list | tuple) else loader
        # predict again: the last validation may have used earlier weights
        found = predict(pl_module, first, split=Split.VALIDATION)
        folder = Path(self.folder or Path(trainer.default_root_dir) / "calibrated")
        folder.mkdir(parents=True, exist_ok=True)
        fit(self.method, found).save(folder / "map")
        with atomic.file(folder / "weights.safetensors") as temporary:
            save_file(hashed.copied(pl_module.state_dict()), temporary)

    def state_dict(self) -> dict[str, Any]:
        """The state of adaptive targets, for Lightning's checkpoint."""
        return dict(self.targets.state()) if isinstance(self.targets, Stateful) else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict and isinstance(self.targets, Stateful):
            self.targets.load(state_dict)

    def _validation(self, pl_module: L.LightningModule) -> Predictions:
        """The predictions of this validation from all processes, so that the targets in each learn the same."""
        columns = [torch.cat(column) for column in zip(*self.seen, strict=True)]
        gathered: list[Any] = [pl_module.all_gather(column.to(pl_module.device)) for column in columns]
        return predictions(gathered[0].flatten(0, -2), gathered[1].flatten(), split=Split.VALIDATION)


def draw(trainer: L.Trainer, name: str, found: Predictions) -> None:
    """Send the reliability diagram to each logger that takes figures (TensorBoard) or images (Weights & Biases)."""
    from calibrant.functional.scores import reduce
    from calibrant.report.plots import reliability_figure

    figure = reliability_figure(reduce(found, classwise=False)).figure
    loggers: list[Any] = trainer.loggers
    for logger in loggers:
        if hasattr(logger.experiment, "add_figure"):
            logger.experiment.add_figure(name, figure, trainer.global_step, close=False)  # it is not a pyplot figure
        elif hasattr(logger, "log_image"):
            logger.log_image(key=name, images=[figure], step=trainer.global_step)
