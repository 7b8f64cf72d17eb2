"""A new kind of rule is one class and one line in the table; it is saved, attached, exported and judged like others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import calibrant
from calibrant.decisions import RULES, Decisions, Rule, attach, judge, load
from calibrant.decisions.export import rule_to_json
from calibrant.diagnostics.stress.cells import Cell
from calibrant.posthoc.map import FitRecord
from calibrant.report.stress_rule import RuleUnderShift
from calibrant.types import Predictions


@dataclass(frozen=True, eq=False)
class Margin(Rule):
    """Accept if the two highest probabilities are far enough apart."""

    least: Tensor
    kind: ClassVar[str] = "margin"

    def decide(self, p: Predictions) -> Decisions:
        assert p.logits is not None
        predicted = p.logits.argmax(-1)
        (accepted,) = self.in_graph(p.logits, predicted, predicted, p.logits.isnan().any(-1))
        return Decisions(accepted, predicted)

    def in_graph(self, logits: Tensor, predicted: Tensor, confidence: Tensor, unknown: Tensor) -> tuple[Tensor, ...]:
        first, second = torch.softmax(logits.double(), -1).topk(2, -1).values.unbind(-1)
        return ((first - second >= self.least) & ~unknown,)

    @property
    def formula(self) -> str:
        return "p = softmax(z'); accept if p_1 − p_2 ≥ least"

    @property
    def sentence(self) -> str:
        return f"accept if the two highest probabilities are {float(self.least):g} apart"


def test_a_rule_is_one_class_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "margin", Margin)
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(500, 4, generator=g)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
    fitted = calibrant.fit("temperature", z[:200], y[:200])
    rule = Margin(torch.tensor([0.3], dtype=torch.float64), map=fitted, record=FitRecord(k=4))
    again = load(rule.save(tmp_path / "rule"))
    assert isinstance(again, Margin) and torch.equal(again(z).accepted, rule(z).accepted)
    predicted, accepted = attach(torch.nn.Identity(), rule)(z)
    assert torch.equal(predicted, z.argmax(1)) and torch.equal(accepted, rule(z).accepted)
    form = rule_to_json(rule)
    assert form["formula"] == rule.formula and form["parameters"] == {"least": [0.3]}
    judgement = judge(rule, calibrant.predictions(z[200:], y[200:]))
    assert judgement.broken is None
    assert judgement.estimates["accepted"].value == pytest.approx(float(rule(z[200:]).accepted.double().mean()))
    under = RuleUnderShift(rule, {Cell("clean"): judgement})
    assert "items accepted" in under.text() and under.panel().tables[0].rows
