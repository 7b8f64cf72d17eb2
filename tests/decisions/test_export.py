"""A rule decides alike when it is attached to a model, exported to ONNX, or written as formulas in JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import calibrant
from calibrant.cli import run
from calibrant.decisions import Rule, attach
from calibrant.decisions.export import rule_to_json
from calibrant.errors import MapError
from tests.posthoc.simulated import need_onnx

GOALS: dict[str, dict[str, Any]] = {
    "accuracy": {"accuracy": 0.8},
    "class": {"accuracy": 0.8, "by": "class"},
    "lac": {"set_coverage": 0.9},
    "aps": {"set_coverage": 0.9, "method": "aps", "by": "class"},
    "raps": {"set_coverage": 0.9, "method": "raps", "k_reg": 1},
    "topk": {"set_coverage": 0.9, "method": "topk"},
    "costs": {"costs": torch.cat([1 - torch.eye(4), torch.full((4, 1), 0.2)], 1), "actions": [*"abcd", "abstain"]},
}


def sample(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, 4, generator=g)
    return 2 * z, torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]


def chosen(goal: str, method: str | None = "temperature") -> Rule:
    fitted = None if method is None else calibrant.fit(method, *sample(800, 1))
    return calibrant.decide(*sample(3000, 2), map=fitted, **GOALS[goal])


def outputs(rule: Rule, z: torch.Tensor) -> list[torch.Tensor]:
    d = rule(z)
    return [t for t in (d.predicted, d.accepted, d.sets, d.action) if t is not None]


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("method", [None, "vector", "histogram_mass", "temperature+isotonic"])
def test_attached_to_a_model(goal: str, method: str | None) -> None:
    rule = chosen(goal, method)
    model = torch.nn.Linear(4, 4)
    x = 3 * torch.randn(500, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found, expected = attach(model, rule)(x), outputs(rule, model(x))
        halved = attach(model, rule).half().float()  # the numbers of the rule keep their digits
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(halved.decision.rule.get_buffer(next(iter(rule.tensors()))), next(iter(rule.tensors().values())))


@pytest.mark.parametrize(("goal", "method"), [("accuracy", "histogram_mass"), ("raps", "temperature"), ("costs", None)])
def test_onnx(goal: str, method: str | None, tmp_path: Path) -> None:
    need_onnx()
    from calibrant.posthoc.onnx_export import run_graph

    rule = chosen(goal, method)
    rule.save(tmp_path / "rule")
    assert run(["export", str(tmp_path / "rule"), "-o", str(tmp_path / "rule.onnx")]) == 0
    z = sample(200, 4)[0]
    found = run_graph(tmp_path / "rule.onnx", z)
    wrong = [(a != b).double().mean() for a, b in zip(found, outputs(rule, z), strict=True)]
    assert max(wrong) <= 0.005


def interpreted(form: dict[str, Any], z: list[float]) -> tuple[int, bool, Any]:
    """A reader of the formulas in another language might look like this."""
    if form["map"] is not None:
        z = [v / form["map"]["parameters"]["T"] for v in z]
    top = max(z)
    e = [math.exp(v - top) for v in z]
    p = [v / sum(e) for v in e]
    a, values = p.index(max(p)), form["parameters"]
    if form["rule"] == "threshold":
        t = values["threshold"][a if form["by"] else 0]
        return a, t is not None and p[a] >= t, None
    if form["rule"] == "costs":
        price = [sum(p[k] * row[i] for k, row in enumerate(values["costs"])) for i in range(len(values["actions"]))]
        action = price.index(min(price))
        return a, values["actions"][action] != "abstain", action
    order = sorted(range(len(p)), key=lambda k: (-p[k], k))
    inside, total = [False] * len(p), 0.0
    for place, k in enumerate(order, 1):
        score = 1 - p[k] if "1 − p_k" in form["formula"] else total if "c_k" in form["formula"] else place
        total += p[k]
        if "penalty" in form["formula"]:
            score += values["penalty"] * max(0, place - values["k_reg"])
        q = values["quantile"][k if form["by"] else 0]
        inside[k] = q is None or score <= q + 1e-12
    return a, inside[a] and sum(inside) == 1, inside


@pytest.mark.parametrize("goal", GOALS)
def test_json(goal: str, tmp_path: Path) -> None:
    rule = chosen(goal)
    rule.save(tmp_path / "rule")
    assert run(["export", str(tmp_path / "rule"), "-o", str(tmp_path / "rule.json")]) == 0
    form = json.loads((tmp_path / "rule.json").read_text("utf-8"))
    assert form["map"]["method"] == "temperature" and form["promise"] == rule.sentence
    z = sample(200, 5)[0]
    predicted, accepted, *more = outputs(rule, z)
    for i in range(200):
        a, ok, extra = interpreted(form, z[i].tolist())
        assert (a, ok) == (int(predicted[i]), bool(accepted[i]))
        assert not more or extra == more[0][i].tolist()


def test_what_has_no_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    z, y = sample(900, 6)
    group = calibrant.decide(calibrant.predictions(z, y, group=y % 2), accept=0.5, by="group")
    drawn = calibrant.decide(z, y, set_coverage=0.9, randomised=True)
    with pytest.raises(MapError, match="by group"):
        attach(torch.nn.Identity(), group)
    for refused in (lambda: attach(torch.nn.Identity(), drawn), lambda: rule_to_json(drawn)):
        with pytest.raises(MapError, match="randomised"):
            refused()
    drawn.save(tmp_path / "rule")
    assert run(["export", str(tmp_path / "rule"), "-o", str(tmp_path / "rule.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert rule_to_json(group)["groups"] == ["0", "1"]


def test_a_model_that_takes_its_inputs_by_name() -> None:
    class Named(torch.nn.Linear):
        def forward(self, *, tokens: torch.Tensor) -> Any:  # type: ignore[override]
            return {"logits": super().forward(tokens)}

    model, rule, x = Named(4, 4), chosen("accuracy"), 3 * sample(50, 7)[0]
    with torch.no_grad():
        found, expected = attach(model, rule)(tokens=x), outputs(rule, model(tokens=x)["logits"])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
