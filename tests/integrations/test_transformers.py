"""`compute_metrics` and the callback in a real Hugging Face `Trainer`, with a tiny random BERT built here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import calibrant

transformers = pytest.importorskip("transformers", reason="pip install 'calibrant[hf]'")
pytest.importorskip("accelerate", reason="the Trainer needs it: pip install 'calibrant[hf]'")

# transformers' own warnings are not ours to fix; ours stay errors
pytestmark = pytest.mark.filterwarnings("ignore", "error::calibrant.errors.CalibrantWarning")

TINY = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
SETTINGS: dict[str, Any] = {
    "num_train_epochs": 1,
    "eval_strategy": "epoch",
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "per_device_train_batch_size": 32,
    "disable_tqdm": True,
    "learning_rate": 0.01,
}


class Sentences(torch.utils.data.Dataset[dict[str, Any]]):
    """Random tokens. The class belongs to the first token, or to each token (−100 at the first)."""

    def __init__(self, n: int, tokens: bool = False) -> None:
        self.ids = torch.randint(0, 20, (n, 6), generator=torch.Generator().manual_seed(n))
        self.labels = self.ids % 3 if tokens else self.ids[:, 0] % 3
        if tokens:
            self.labels[:, 0] = -100

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(6).long(), "labels": self.labels[i]}


@pytest.mark.parametrize("tokens", [False, True])
def test_a_trainer_reports_the_panel_and_saves_a_map(tokens: bool, tmp_path: Path) -> None:
    from calibrant.integrations.transformers import Calibration, compute_metrics

    kind = "BertForTokenClassification" if tokens else "BertForSequenceClassification"
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.BertConfig(**TINY, num_labels=3))
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(str(tmp_path), **SETTINGS),
        train_dataset=Sentences(64, tokens),
        eval_dataset=(held_out := Sentences(90, tokens)),
        compute_metrics=compute_metrics,
        callbacks=[Calibration()],
    )
    trainer.train()
    found = trainer.evaluate()
    logits = model.eval()(held_out.ids, attention_mask=torch.ones_like(held_out.ids)).logits.detach()
    own = calibrant.evaluate(logits, held_out.labels, class_axis=-1, ignore_index=-100, intervals=False)
    for name in ("accuracy", "nll", "ece", "gap"):
        assert found[f"eval_{name}"] == pytest.approx(own[name].value, abs=1e-5)
    fitted = calibrant.load(tmp_path / "calibrated")
    assert fitted.record.n == (90 * 5 if tokens else 90)
    if not tokens:
        assert calibrant.attach(model, fitted)(input_ids=held_out.ids).shape == (90, 3)
