"""`calibrant.train` returns the content of `metrics.json` as a dict that shows its main results."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import calibrant
from calibrant.display import HEADLINE
from calibrant.training import How, read

QUIET = How(device="cpu", quiet=True)


def test_the_result_shows_the_verdict_six_numbers_and_the_folder(tmp_path: Path) -> None:
    recipe = read("digits/cross_entropy", ["epochs=1", "network.hidden=[16]"])
    result = calibrant.train(recipe, tmp_path / "run", QUIET)
    lines = repr(result).splitlines()
    assert lines[0].startswith(result.verdict)
    assert [line.split()[0] for line in lines[1:]] == [*HEADLINE, "split", "run"]
    assert lines[-1].endswith(str(tmp_path / "run")) and "test" in lines[-2]
    assert all("[" in line for line in lines[1:6])  # with intervals
    stored = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {k: stored[k] for k in result} == json.loads(json.dumps(result))
    assert abs(result.report.ece.value - result["metrics"]["test"]["ece"]) < 1e-9
    again = pickle.loads(pickle.dumps(result))
    assert again == result and repr(again) == repr(result)
    assert result._repr_html_().count("<tr>") == 8


def test_without_a_folder_nothing_is_kept_but_the_result() -> None:
    recipe = read("digits/cross_entropy", ["epochs=1", "network.hidden=[16]"])
    result = calibrant.train(recipe, how=QUIET)
    assert result.run is None and repr(result).endswith("not kept")
    assert result.predictions.n == result["metrics"]["test"]["n"]
