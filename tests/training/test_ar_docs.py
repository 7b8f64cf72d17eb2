"""The Python of docs/ar-adals.md runs as it stands; its recipes exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calibrant.training import RECIPES, read

PAGE = Path(__file__).parents[2] / "docs" / "ar-adals.md"


def test_every_python_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)), {})
    assert (tmp_path / "levels.png").stat().st_size > 1000
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_recipes_and_toml_are_real(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    for name in re.findall(r"calibrant train (\S+)", text):
        assert name in RECIPES
    for line in re.findall(r"^\| `(ar-adals/.*?) \|", text, re.M):
        first, *others = re.findall(r"([\w/-]+)`?", line.replace("`", ""))
        assert first in RECIPES and all(o in RECIPES or f"ar-adals/{o}" in RECIPES for o in others), line
    [toml] = re.findall(r"```toml\n(.*?)```", text, re.S)
    (tmp_path / "r.toml").write_text(toml)
    assert read(tmp_path / "r.toml").targets.options["levels"] == 10
