"""Probabilities passed as logits give one warning at the caller's line, and are used as logits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import calibrant
from calibrant import CalibrantWarning

torch.manual_seed(0)
Z = 3 * torch.randn(400, 4, dtype=torch.float64)
Y = torch.distributions.Categorical(logits=Z).sample()
P = Z.softmax(-1)
ONE, TWO = P[:, 0] / (P[:, 0] + P[:, 1]), (Y == 0).long()


def loader(n: int = 64) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(Z[i : i + n].float(), Y[i : i + n]) for i in range(0, len(Z), n)]


def panel(scores: torch.Tensor, exact: bool = True, each: int = 50) -> dict[str, float]:
    from calibrant.metrics.torchmetrics_adapter import CalibrationPanel

    made = CalibrationPanel(scores.shape[-1], ["ece", "nll"], exact=exact)
    for i in range(0, len(scores), each):
        made.update(scores[i : i + each], Y[i : i + each])
    return made.compute()


GIVEN: dict[str, Callable[[], Any]] = {
    "evaluate": lambda: calibrant.evaluate(P, Y, intervals=False),
    "evaluate numpy": lambda: calibrant.evaluate(P.numpy(), Y.numpy(), intervals=False),
    "evaluate half": lambda: calibrant.evaluate(P.half(), Y, intervals=False),
    "evaluate members": lambda: calibrant.evaluate(torch.stack([P, P.flip(0)]), Y, intervals=False),
    "evaluate one column": lambda: calibrant.evaluate(ONE, TWO, intervals=False),
    "fit": lambda: calibrant.fit("temperature", P, Y),
    "compare": lambda: calibrant.compare(P, P.flip(0), Y, metrics=["nll"], replicates=20),
    "predictions": lambda: calibrant.predictions(P, Y),
    "predict softmax": lambda: calibrant.predict(nn.Softmax(-1), loader()),
    "predict sigmoid": lambda: calibrant.predict(
        lambda x: torch.sigmoid(x[:, :1]), [(x, (y == 0).long()) for x, y in loader()]
    ),
    "panel": lambda: panel(P),
    "panel sums": lambda: panel(P, exact=False),
}


@pytest.mark.parametrize("name", GIVEN)
def test_probabilities_as_logits_give_a_warning(name: str) -> None:
    with pytest.warns(CalibrantWarning, match="probs=") as said:
        GIVEN[name]()
    assert {w.filename for w in said} == {__file__}  # the caller's own line, not one of ours


def test_values_are_never_reinterpreted() -> None:
    with pytest.warns(CalibrantWarning):
        found = calibrant.evaluate(P, Y, intervals=False)["nll"].value
    expected = -torch.log_softmax(P, -1).gather(1, Y[:, None]).mean()
    assert found == pytest.approx(float(expected), abs=1e-12)


LOGITS: dict[str, torch.Tensor] = {
    "logits": Z,
    "log-probabilities": P.log(),
    "certain log-probabilities": torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]]),
    "all zero": torch.zeros(50, 3),
    "one column of zeros": torch.zeros(50),
    "first rows alone": torch.cat([P, Z]),
    "one row that sums to 1.01": torch.cat([P, torch.tensor([[0.5, 0.3, 0.2, 0.01]])]),
    "positive": Z.abs(),
    "one negative value": torch.cat([P, torch.tensor([[1.2, -0.2, 0.0, 0.0]])]),
}


@pytest.mark.parametrize("name", LOGITS)
def test_logits_give_no_warning(name: str) -> None:
    scores = LOGITS[name]  # warnings are errors here
    calibrant.predictions(scores, torch.arange(len(scores)) % 2)


def test_probs_give_no_warning() -> None:
    p = calibrant.predictions(probs=P, labels=Y)
    calibrant.evaluate(p, replicates=20)
    calibrant.compare(p, p, replicates=20)
    fitted = calibrant.fit("auto", p, budget=1.0)
    calibrant.evaluate(fitted.predictions(p), allow_reuse=True, intervals=False)


def test_a_panel_considers_all_batches() -> None:
    assert panel(torch.cat([P[:50], Z[50:]]))["nll"] > 0  # warnings are errors here


def test_a_loop_warns_once() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(3):
            calibrant.predictions(P, Y)
    assert len(said) == 1
