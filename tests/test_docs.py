"""The site builds without warnings and loads nothing from elsewhere; the API page is the public surface."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import calibrant
from docs.make_api import page

ROOT = Path(__file__).resolve().parents[1]


def test_the_site_builds_offline(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted(tmp_path.glob("*.html"))
    assert {"index.html", "tutorial.html", "conventions.html", "methods.html", "api.html"} <= {p.name for p in pages}
    for built in pages:
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", built.read_text()):
            assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), f"{built.name} loads {tag}"


def test_the_api_page_is_the_public_surface() -> None:
    assert re.findall(r"^## (\w+)$", page(), re.MULTILINE) == list(calibrant.__all__)
