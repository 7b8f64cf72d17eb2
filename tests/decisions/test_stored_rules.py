"""Rules that version 0.2 saved still load, decide as they did, and can be judged."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import calibrant
from calibrant.decisions import Rule, judge

STORED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("rules_0_2.json").read_text("utf-8"))
LOGITS = [[0.0, 1.0, 2.0], [0.1, 0.0, 0.2], [-2.0, -2.5, 4.0], [50.0, 0.0, -50.0], [0.0, -torch.inf, 0.3]]


@pytest.mark.parametrize("kind", STORED)
def test_a_rule_of_version_0_2_decides_as_it_did(kind: str, tmp_path: Path) -> None:
    stored = STORED[kind]
    (tmp_path / "rule.json").write_text(stored["rule.json"], "utf-8")
    (tmp_path / "rule.safetensors").write_bytes(base64.b64decode(stored["rule.safetensors"]))
    rule = calibrant.load(tmp_path)
    assert isinstance(rule, Rule) and rule.kind == kind and rule.sentence == stored["sentence"]
    logits = torch.tensor(LOGITS, dtype=torch.float64)
    found = rule(logits)
    for name in ("accepted", "sets", "action"):
        held = getattr(found, name)
        assert (None if held is None else held.tolist()) == stored[name], name
    assert rule.to_dict()["rule"] == kind
    judged = judge(rule, calibrant.predictions(logits, [2, 2, 2, 0, 2]))
    assert judged.estimates["accuracy_accepted"].value == 1 and not judged.broken
