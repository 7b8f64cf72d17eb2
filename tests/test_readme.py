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
DEMO = "calibrant demo -o demo"  # both pages start with it, and it is the longest command: it runs once


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


def run(language: str, code: str, folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        command(language, code), cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    run("sh", DEMO, folder)
    return folder / "demo"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, tmp_path: Path, demo: Path) -> None:
    assert any(DEMO in code for _, code in steps(page))
    for language, code in steps(page):
        run(language, code.replace(DEMO, f"cp -r '{demo}' demo"), tmp_path)


def test_the_tour_is_short() -> None:
    lines = [line for language, code in blocks("README.md") if language in RUNS for line in code.splitlines() if line]
    assert 10 <= len(lines) <= 30


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert target.startswith("https://") or (ROOT / target).exists(), target
