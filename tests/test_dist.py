"""What is released: the wheel alone, in an environment without our source tree, runs the whole pipeline elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path

import pytest

import calibrant

ROOT = Path(__file__).resolve().parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


PIPELINE = """
import calibrant
from calibrant.cli import run
print(calibrant.__file__)
assert run(["train", "digits/cross_entropy", "--set", "epochs=1", "-o", "run"]) == 0
assert run(["audit", "run/test.npz", "--no-intervals", "--html", "report.html"]) == 0
"""
"""In one process, as most of the time would go into importing torch again."""


def run(*words: str | Path, cwd: Path) -> str:
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=plain, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make dist` fills, from a copy of the tree."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(
        ROOT / "src" / "calibrant", tree / "src" / "calibrant", ignore=shutil.ignore_patterns("__pycache__")
    )
    (line,) = re.findall(r'-c "(from setuptools import build_meta.*?)"', (ROOT / "Makefile").read_text("utf-8"))
    run(sys.executable, "-c", line, cwd=tree)
    return tree / "dist"


def test_the_wheel_trains_and_reports_in_a_clean_environment(built: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", "clean", cwd=tmp_path)
    python = tmp_path / "clean" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # the packages that calibrant needs are borrowed; a path in a .pth file does not read .pth files of its own, so
    # that an editable calibrant there stays out of sight
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert "no calibrant" in run(
        python, "-c", "import importlib.util as u; print(u.find_spec('calibrant') or 'no calibrant')", cwd=tmp_path
    )
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel, cwd=tmp_path)
    command, elsewhere = tmp_path / "clean" / "bin" / "calibrant", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run(command, "--version", cwd=elsewhere) == f"calibrant {VERSION}\n"
    where, *said = run(python, "-c", PIPELINE, cwd=elsewhere).splitlines()
    assert Path(where).is_relative_to(tmp_path / "clean")
    assert "accuracy" in "".join(said)
    assert (elsewhere / "report.html").stat().st_size > 50_000


def test_the_source_archive_builds_again(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    assert archive.name == f"calibrant-{VERSION}.tar.gz"
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"pyproject.toml", "LICENSE", "src/calibrant/py.typed", "src/calibrant/report/page/report.css"} <= names


def test_a_bare_source_tree_knows_its_version(tmp_path: Path) -> None:
    """Without metadata of any installed calibrant."""
    code = (
        "import importlib.metadata as m\n"
        "def missing(name): raise m.PackageNotFoundError(name)\n"
        "m.version = missing\n"
        "import calibrant; print(calibrant.__version__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == VERSION


def test_the_changelog_has_this_version_and_the_classifiers_what_is_supported() -> None:
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"
    supported = {c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c}
    assert supported == {"3.11", "3.12", "3.13"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", calibrant.__version__)
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
