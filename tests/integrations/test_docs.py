"""The Python code of docs/integrations.md runs as it is; its last part needs transformers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"

pytestmark = pytest.mark.filterwarnings("ignore", "error::calibrant.errors.CalibrantWarning")


def test_every_python_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_lightning, with_transformers = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    there: dict[str, object] = {}
    exec(with_lightning, there)
    pytest.importorskip("transformers", reason="pip install 'calibrant[hf]'")
    exec(with_transformers, there)
    assert (tmp_path / "trainer" / "calibrated" / "map.json").is_file()
