"""The README and the tutorial are executed, block by block, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "docs/tutorial.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUNS = {"sh", "python"}
SHOWN = {"text", "json"}  # output, not input


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text())


def script(page: str) -> str:
    """One shell script; a Python block runs after those before it on the page, so that they read as one session."""
    lines = ["set -eu"]
    for number, (language, code) in enumerate(blocks(page)):
        if language == "python":
            lines.append(f"python {page.replace('/', '-')}-{number}.py")
        elif language == "sh":
            # setting up inside a test would never end: make only has to know the targets
            lines += [re.sub(r"^make (.*)", rf"make -C '{ROOT}' -n \1", line) for line in code.splitlines()]
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, tmp_path: Path) -> None:
    before = ""
    for number, (language, code) in enumerate(blocks(page)):
        assert language in RUNS | SHOWN, f"{page}: a block of {language!r} is neither executed nor output"
        if language == "python":
            before += code
            (tmp_path / f"{page.replace('/', '-')}-{number}.py").write_text(before)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONWARNINGS": "error::UserWarning"}
    done = subprocess.run(
        ["bash", "-c", script(page)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{page}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_the_tour_is_short() -> None:
    lines = [line for language, code in blocks("README.md") if language in RUNS for line in code.splitlines() if line]
    assert 10 <= len(lines) <= 30


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target
