"""Calibration in the Hugging Face `Trainer`: metrics at each evaluation, and a fitted map at the end.

    trainer = Trainer(…, compute_metrics=compute_metrics, callbacks=[Calibration()])

Classes are the last axis of the logits. Items with the label −100, such as special tokens, are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from calibrant.display import HEADLINE
from calibrant.ensembles.prediction import predict
from calibrant.errors import InputError, MissingDependencyError
from calibrant.metrics.evaluate import evaluate
from calibrant.posthoc.fit import fit
from calibrant.types import Split

try:
    TrainerCallback: Any = import_module("transformers").TrainerCallback
except ImportError as error:
    raise MissingDependencyError("the integration needs transformers: pip install 'calibrant[hf]'") from error

IGNORED = -100
"""The label that transformers gives to tokens without a class."""


def compute_metrics(found: Any, metrics: Sequence[str] = HEADLINE) -> dict[str, float]:
    """The metrics as name → value, for `Trainer(compute_metrics=…)`. A value that does not exist is left out."""
    logits = found.predictions[0] if isinstance(found.predictions, tuple) else found.predictions
    report = evaluate(logits, found.label_ids, metrics=metrics, intervals=False, class_axis=-1, ignore_index=IGNORED)
    return {name: estimate.value for name, estimate in report.items() if estimate.value is not None}


class Calibration(TrainerCallback):  # type: ignore[misc]
    """Fits `method` on the evaluation data when training ends, and saves the map, by default in OUTPUT_DIR/calibrated.

    `calibrant.attach(model, calibrant.load(folder))` is the calibrated model.
    """

    def __init__(self, method: str = "temperature", folder: str | Path | None = None) -> None:
        self.method, self.folder = method, folder

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if not state.is_world_process_zero:
            return
        if given.get("eval_dataloader") is None:
            raise InputError("there was no evaluation to fit a map on; pass eval_dataset= and eval_strategy='epoch'")
        found = predict(
            given["model"], given["eval_dataloader"], split=Split.VALIDATION, class_axis=-1, ignore_index=IGNORED
        )
        fit(self.method, found).save(Path(self.folder or Path(args.output_dir) / "calibrated"))
