"""Parts of the items: a worse part is found, equal parts are not flagged, `by` equals `--by`; plans of a width."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import calibrant
from calibrant import evaluate, predictions
from calibrant.cli import run
from calibrant.errors import InputError, UnknownNameError
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
    """A model may be overconfident everywhere, but then no part is worse than the others."""
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


G = np.random.default_rng(0)
SITE = np.array(["north", "south", "west"])[G.integers(0, 3, 900)]
Z = G.normal(0, 1.5, (900, 3))
Y = (Z + G.gumbel(size=Z.shape)).argmax(1)
Z = Z * np.where(SITE == "west", 5.0, 1.0)[:, None]


def test_it_equals_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", logits=Z, labels=Y, site=SITE)
    assert run(["audit", str(tmp_path / "x.npz"), "--by", "site", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)[0]["by"]
    table = pa.table({"label": Y, "site": SITE, **{f"logit_{k}": Z[:, k] for k in range(3)}})
    report = calibrant.evaluate(table, by="site")
    assert report.by.to_dict() == said == json.loads(report.to_json())["by"]
    assert report.by.worst.name == said["worst"] == "west"
    assert "worst site: west" in repr(report) and "worst site: west" in repr(report.by)
    assert len(repr(report.by).splitlines()) == 1 + 1 + 3
    assert report.by["west"].report.n == (SITE == "west").sum()
    with pytest.raises(UnknownNameError, match="did you mean 'west'"):
        report.by["wset"]
    page = report.to_html(tmp_path / "r.html").read_text()
    assert "Is it worse for some site?" in page


def test_values_beside_arrays_predictions_and_maps() -> None:
    quick = {"intervals": False, "metrics": ["ece"]}
    p = calibrant.predictions(Z, Y)
    a, b = calibrant.evaluate(Z, Y, by=SITE, **quick), calibrant.evaluate(p, by=list(SITE), **quick)
    assert a.by == b.by and a.by.column == "group" and set(a.by.parts[0].report) == {"ece", "gap"}
    maps = torch.from_numpy(Y).reshape(9, 10, 10).clone()
    maps[:, 0] = 255
    images = torch.from_numpy(Z).reshape(9, 10, 10, 3).movedim(-1, 1)
    pixels = {"class_axis": 1, "ignore_index": 255}
    report = calibrant.evaluate(images, maps, by=torch.arange(9) % 3, **pixels, **quick)
    assert [part.report.n for part in report.by.parts] == [270, 270, 270]


def test_bad_values_of_by_are_named() -> None:
    with pytest.raises(InputError, match="names a column of a table"):
        calibrant.evaluate(Z, Y, by="site")
    with pytest.raises(InputError, match="one entry for each"):
        calibrant.evaluate(Z, Y, by=SITE[:5])
    with pytest.raises(InputError, match="900 different values"):
        calibrant.evaluate(Z, Y, by=np.arange(900))
