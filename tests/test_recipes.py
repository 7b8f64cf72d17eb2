"""Every block of the recipes and explanations is run, page by page, in one process and an empty folder."""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml

from calibrant import predictions
from calibrant.cli import run
from tests.hurried import hurried

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ["index.md", *sorted(str(path.relative_to(DOCS)) for path in DOCS.glob("*/*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `calibrant demo -o demo` leaves, in small: an overconfident model of ten classes."""
    hurried(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()
    rng = np.random.default_rng(0)
    for split in ("calibration", "test"):
        z = rng.normal(0, 6, (600, 10)).astype(np.float32)
        y = (z + rng.gumbel(size=z.shape)).argmax(1)
        predictions(3 * z, y, split=split).save(f"demo/{split}.npz")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, demo: None, capsys: pytest.CaptureFixture[str]) -> None:
    test = np.load("demo/test.npz")
    names: dict[str, object] = {"logits": test["logits"], "labels": test["labels"]} if page == "index.md" else {}
    for language, code in BLOCK.findall((DOCS / page).read_text("utf-8")):
        if language == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch's exporter
                exec(compile(code, page, "exec"), names)
        elif language == "sh":
            for line in code.splitlines():
                program, *words = shlex.split(line, comments=True)
                assert program == "calibrant"
                assert run(words) == 0, f"{line}\n{capsys.readouterr().err}"
        elif language == "yaml":
            (job,) = yaml.safe_load(code)["jobs"].values()
            assert any("calibrant audit" in step.get("run", "") for step in job["steps"])
        else:
            assert language == "text", f"{page}: a block of {language!r} is neither run nor output"


def test_there_are_twenty_recipes() -> None:
    recipes = [line for p in PAGES if p.startswith("howto") for line in (DOCS / p).read_text("utf-8").splitlines()]
    assert len([line for line in recipes if line.startswith("## ")]) >= 20
