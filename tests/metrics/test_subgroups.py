"""Parts of the items: a worse part is found, equal parts are not flagged, and plans predict the width."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant import evaluate, predictions
from calibrant.errors import InputError
from calibrant.metrics.evaluate import plan
from calibrant.metrics.subgroups import subgroups
from calibrant.types import Predictions

NAMES = tuple("abcdefgh")


def drawn(n: int, seed: int, sharpness: float | np.ndarray = 1.0) -> Predictions:
    """Calibrated where `sharpness` is 1, overconfident above."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1.5, (n, 4))
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    return predictions(z * np.broadcast_to(sharpness, n)[:, None], y)


def test_the_one_bad_part_is_named() -> None:
    part = torch.arange(1600) % 8
    p = drawn(1600, 0, np.where(part.numpy() == 3, 4.0, 1.0))
    found = subgroups(p, part, NAMES, "site", metrics=["accuracy", "gap"])
    assert found.worst is not None and found.worst.name == "d"
    assert [g.name for g in found.parts] == list(NAMES) and {g.report.n for g in found.parts} == {200}
    alone = evaluate(p.take((part == 3).nonzero()[:, 0]), metrics=["accuracy", "gap"])
    assert found.parts[3].report["gap"] == alone["gap"]
    rest = evaluate(p.take((part != 3).nonzero()[:, 0]), metrics=["gap"], intervals=False)
    assert found.parts[3].rest == pytest.approx(rest["gap"].value)


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_eight_equal_parts_rarely_have_a_worst(sharpness: float) -> None:
    """Also of a model that is overconfident everywhere: no part is worse than the others."""
    part = torch.from_numpy(np.random.default_rng(9).choice(8, 640, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02]))
    plain, corrected = 0, 0
    for seed in range(120):
        found = subgroups(drawn(640, seed, sharpness), part, NAMES, "site", metrics=["gap"], intervals=False)
        plain += any(g.p < 0.05 for g in found.parts)
        corrected += found.worst is not None
    assert corrected <= 12 < plain  # 6 expected of 120; without correction about 40


def test_correlated_groups_are_not_evidence() -> None:
    """Ten frames of each of 60 scenes share their answer: one bad scene must not convict its part."""
    p, repeat = drawn(60, 1), torch.arange(60).repeat_interleave(10)
    part = (torch.arange(60) % 4)[repeat]
    assert p.logits is not None
    free = predictions(p.logits[repeat], p.labels[repeat])
    held = predictions(p.logits[repeat], p.labels[repeat], group=repeat)
    loose = subgroups(free, part, NAMES[:4], "site", metrics=["gap"], intervals=False)
    tight = subgroups(held, part, NAMES[:4], "site", metrics=["gap"])
    assert all(a.p < b.p for a, b in zip(loose.parts, tight.parts, strict=True))
    assert all(g.report["gap"].low is not None for g in tight.parts)


def test_a_column_of_ids_is_refused() -> None:
    p = drawn(300, 0)
    with pytest.raises(InputError, match="300 different values; 2 to 100"):
        subgroups(p, torch.arange(300), tuple(map(str, range(300))), "id")


def test_a_plan_predicts_the_width() -> None:
    names = ["accuracy", "nll", "brier", "gap", "auroc", "ece"]
    needed = plan(evaluate(drawn(1500, 0, 2.0), metrics=names), 0.03)
    for name in names:
        n = needed[name]
        assert n is not None
        e = evaluate(drawn(n, 1, 2.0), metrics=[name])[name]
        assert e.low is not None and e.high is not None
        assert e.high - e.low == pytest.approx(0.03, rel=0.25), name
    with pytest.raises(InputError, match="width 0"):
        plan(evaluate(drawn(50, 0), metrics=["gap"]), 0)


def test_a_plan_without_an_interval_is_none() -> None:
    assert plan(evaluate(drawn(50, 0), metrics=["gap"], intervals=False), 0.1) == {"gap": None}
