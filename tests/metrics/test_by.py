"""`calibrant.evaluate(…, by=…)` equals `calibrant audit --by`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import calibrant
from calibrant.cli import run
from calibrant.errors import InputError, UnknownNameError

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
