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


def steps(page: str) -> list[tuple[str, str]]:
    """What is executed, in order; Python blocks that follow each other are one program."""
    found: list[tuple[str, str]] = []
    for language, code in blocks(page):
        assert language in RUNS | SHOWN, f"{page}: a block of {language!r} is neither executed nor output"
        if language == "python" and found and found[-1][0] == "python":
            found[-1] = ("python", found[-1][1] + code)
        elif language in RUNS:
            found.append((language, code))
    return found


def command(language: str, code: str) -> list[str]:
    if language == "python":
        return [sys.executable, "-c", code]
    # setting up inside a test would never end: make only has to know the targets
    return ["bash", "-euc", re.sub(r"^make ", f"make -C '{ROOT}' -n ", code, flags=re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    for language, code in steps(page):
        done = subprocess.run(
            command(language, code), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{page}:\n{code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_the_tour_is_short() -> None:
    lines = [line for language, code in blocks("README.md") if language in RUNS for line in code.splitlines() if line]
    assert 10 <= len(lines) <= 30


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert target.startswith("https://") or (ROOT / target).exists(), target
