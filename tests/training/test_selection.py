"""A search records its points, its choice and the split of the choice; a choice on test is an oracle choice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrant.errors import InputError
from calibrant.training import How, Recipe, load, read, select, selection, train
from calibrant.training.selection import best

QUIET = How(device="cpu", quiet=True)
GRID = "selection={grid={'targets.epsilon'=[0.0, 0.3]}, criterion='ece', split='%s'}"


def recipe(split: str = "validation") -> Recipe:
    return read("digits/smoothing", ["epochs=3", "network.hidden=[32]", GRID % split])


def test_the_best_on_validation_is_chosen_and_the_oracle_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []  # both splits may have the same best point
    monkeypatch.setattr(selection, "best", lambda *given: asked.append(given[2]) or best(*given))
    record = select(recipe(), tmp_path / "run", QUIET)
    assert asked == ["validation", "test"]
    assert [p["settings"] for p in record["points"]] == [{"targets.epsilon": 0.0}, {"targets.epsilon": 0.3}]
    eces = [p["metrics"]["validation"]["ece"] for p in record["points"]]
    assert record["chosen"]["metrics"]["validation"]["ece"] == min(eces)
    tests = [p["metrics"]["test"]["ece"] for p in record["points"]]
    assert record["oracle_choice"]["metrics"]["test"]["ece"] == min(tests)
    assert not record["oracle"] and record["split"] == "validation"
    folder = tmp_path / "run"
    chosen = folder / record["chosen"]["folder"]
    assert (folder / "test.npz").read_bytes() == (chosen / "test.npz").read_bytes()
    assert json.loads((folder / "selection.json").read_text())["chosen"]["settings"] == record["chosen"]["settings"]
    assert load(folder).recipe.targets.options == {"epsilon": record["chosen"]["settings"]["targets.epsilon"]}


def test_a_stopped_search_resumes(tmp_path: Path) -> None:
    whole = select(recipe(), tmp_path / "a", QUIET)
    first = recipe().points()[0][1]
    name = Path(whole["points"][0]["folder"]).name
    train(first, tmp_path / "b" / "points" / name, QUIET)  # what a kill after the first point leaves
    again = select(recipe(), tmp_path / "b", QUIET)
    assert again["chosen"] == whole["chosen"] and again["key"] == whole["key"]
    with pytest.raises(InputError, match="other settings"):
        select(recipe("test"), tmp_path / "b", QUIET)


def test_directions_and_absent_values() -> None:
    points = [
        {"metrics": {"validation": {"auroc": a, "gap": g}}, "i": i}
        for i, (a, g) in enumerate([(0.8, -0.1), (0.9, 0.2), (None, 0.05)])
    ]
    assert best(points, "auroc", "validation")["i"] == 1
    assert best(points, "gap", "validation")["i"] == 2
    with pytest.raises(InputError, match="no point"):
        best(points, "auroc", "test")


def test_a_selection_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has a selection"):
        train(recipe(), tmp_path, QUIET)
    assert (chosen := recipe("test").selection) is not None and chosen.oracle
    with pytest.raises(InputError, match="no selection"):
        select(read("digits/focal"), tmp_path, QUIET)
