"""`attach`, `map(z)` and ONNX export take the models that `predict` takes: one logit, a dict, inputs by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calibrant
from calibrant.errors import InputError, MapError
from calibrant.functional.model_output import logits_of
from calibrant.posthoc import attach
from calibrant.posthoc.onnx_export import run_onnx, to_onnx

G = torch.Generator().manual_seed(0)
X, OTHER = torch.randn(400, 6, generator=G), torch.randn(400, 6, generator=G)


@dataclass
class Output:
    """What models of transformers return."""

    logits: Tensor


class Model(nn.Module):
    def __init__(self, k: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(k)
            self.layer = nn.Linear(6, k)

    def forward(self, x: Tensor) -> Any:
        return 3 * self.layer(x)


class Column(Model):
    def __init__(self) -> None:
        super().__init__(1)


class Flat(Column):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x)[:, 0]


class Table(Model):
    def forward(self, x: Tensor) -> Any:
        return {"loss": None, "logits": super().forward(x)}


class NamedFlat(Column):
    def forward(self, *, tokens: Tensor, mask: Tensor) -> Any:
        return Output(super().forward(tokens * mask.sigmoid())[:, 0])


def inputs(model: nn.Module) -> dict[str, Tensor] | Tensor:
    return {"tokens": X, "mask": OTHER} if type(model).__name__.startswith("Named") else X


def asked(model: nn.Module, given: dict[str, Tensor] | Tensor) -> Any:
    return model(given) if isinstance(given, Tensor) else model(**given)


def predicted(model: nn.Module) -> calibrant.Predictions:
    given = inputs(model)
    with torch.no_grad():
        z = logits_of(asked(model, inputs(model)))
    p = torch.softmax(z / 2, 1) if z.shape[1:] not in ((), (1,)) else None
    y = torch.bernoulli((z / 2).reshape(-1).sigmoid(), generator=G) if p is None else torch.multinomial(p, 1)[:, 0]
    batch: Any = (given, y.long()) if isinstance(given, Tensor) else {**given, "labels": y.long()}
    return calibrant.predict(model, [batch])


@pytest.mark.parametrize("kind", [Column, Flat, Table, NamedFlat])
@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_a_map_reads_a_models_output_as_predict_does(kind: type[Model], method: str) -> None:
    model = kind().eval()
    p = predicted(model)
    fitted = calibrant.fit(method, p)
    expected = torch.softmax(fitted(p.logits), 1)
    with torch.no_grad():
        raw = logits_of(asked(model, inputs(model)))
        torch.testing.assert_close(torch.softmax(fitted(raw), 1), expected)
        torch.testing.assert_close(torch.softmax(fitted(raw.numpy()), 1), expected)
        found = torch.softmax(asked(attach(model, fitted), inputs(model)), 1)
    torch.testing.assert_close(found, expected.float(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [Column, Table, NamedFlat])  # which are all ways in and out
def test_onnx_has_the_same_inputs_and_gives_the_same_probabilities(kind: type[Model], tmp_path: Path) -> None:
    model = kind().eval()
    p, given = predicted(model), inputs(model)
    fitted = calibrant.fit("temperature", p)
    few = given[:8] if isinstance(given, Tensor) else {name: t[:8] for name, t in given.items()}
    path = to_onnx(tmp_path / "model.onnx", model, fitted, few)
    found = torch.softmax(run_onnx(path, given), 1)
    torch.testing.assert_close(found.double(), torch.softmax(fitted(p.logits), 1), atol=1e-5, rtol=0)


def test_one_logit_per_pixel_keeps_its_axis() -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x)

    model, x = Pixels().eval(), torch.randn(4, 3, 5, 6)
    y = torch.randint(0, 2, (4, 5, 6))
    p = calibrant.predict(model, [(x, y)], class_axis=1)
    fitted = calibrant.fit("temperature", p)
    with torch.no_grad():
        out = attach(model, fitted, class_axis=1)(x)
    assert out.shape == (4, 2, 5, 6)
    torch.testing.assert_close(out.movedim(1, -1).reshape(-1, 2).double(), fitted(p.logits), atol=1e-5, rtol=1e-5)


def test_one_column_is_accepted_only_by_a_map_of_two_classes() -> None:
    fitted = calibrant.fit("temperature", predicted(Table().eval()))
    with pytest.raises(MapError, match="3 classes"):
        fitted(torch.randn(5, 1))
    with pytest.raises(InputError, match="the model returned tuple"):
        attach(nn.LSTM(6, 3), fitted)(X)


def test_a_map_of_as_many_columns_as_classes_is_calibrated_over_its_classes() -> None:
    net, x, y = nn.Conv2d(3, 4, 1), torch.randn(8, 3, 5, 4, generator=G), torch.arange(160).reshape(8, 5, 4) % 4
    fitted = calibrant.fit("vector", net(x).detach(), y, class_axis=1)
    expected = fitted(net(x).movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(attach(net, fitted)(x), expected.float())
