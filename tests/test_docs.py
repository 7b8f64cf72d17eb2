"""The site builds offline and without warnings; its Python runs; the API page is the public surface."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import calibrant
from calibrant.cli import VERBS
from docs.make_api import FAMILIES, page, tables
from docs.make_cli import page as cli_page

ROOT = Path(__file__).resolve().parents[1]


def test_the_site_builds_offline(tmp_path: Path) -> None:
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path))
    build(config)  # strict: a warning ends it
    pages = sorted(tmp_path.rglob("*.html"))
    assert {"index.html", "cli.html", "tutorial.html", "conventions.html", "methods.html", "api.html"} <= {
        p.name for p in pages
    }
    listed = set(re.findall(r'href="([\w/-]+)\.html"', (tmp_path / "index.html").read_text()))
    written = {str(p.relative_to(ROOT / "docs").with_suffix("")) for p in (ROOT / "docs").rglob("*.md")}
    assert listed >= written, f"pages that nobody finds: {sorted(written - listed)}"
    for built in pages:
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", built.read_text()):
            assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), f"{built.name} loads {tag}"


RUN_HERE = (
    *("ar-adals", "attacks", "data", "decide", "ensembles", "networks", "own-training", "posthoc", "probe", "report"),
    *("shifts", "smoothing", "training"),
)
AFTER = {
    "ar-adals": ("Path('levels.png').stat().st_size > 1000",),
    "report": ("Path('report.html').stat().st_size > 50_000", "Path('reliability.png').exists()"),
    "shifts": (
        "foggy.shape == images.shape and len(suite) == 75",
        "frames.shape == (31, 8, 3, 32, 32) and 0 <= float(steady) <= 1",
        "curve.shape == (10,)",
    ),
    "training": ("not network.training",),
}
"""Page → what is true when its Python has run."""
RUN_ELSEWHERE = {
    "deployment",
    "index",
    "integrations",
    "stress",
    "tutorial",
}
QUOTES = {"extending"}


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / f"{page}.md").read_text("utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", RUN_HERE)
def test_the_python_of_a_page_runs_as_printed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"Path": Path}
    exec(compile("".join(python_blocks(page)), f"docs/{page}.md", "exec"), names)
    for fact in AFTER.get(page, ()):
        assert eval(fact, names), fact


def test_every_page_with_python_is_run_by_a_test() -> None:
    with_python = {p.stem for p in (ROOT / "docs").glob("*.md") if python_blocks(p.stem)} - {"methods", "api"}
    assert with_python == {*RUN_HERE} | RUN_ELSEWHERE | QUOTES
    tests = "".join(p.read_text("utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    assert [page for page in sorted(RUN_ELSEWHERE) if f"{page}.md" not in tests] == []


@pytest.mark.parametrize("page", sorted(QUOTES))
def test_what_a_page_quotes_stands_in_the_source(page: str) -> None:
    for block in python_blocks(page):
        head, *lines = block.splitlines()
        source = {line.strip().rstrip(",") for line in (ROOT / head.split()[1].rstrip(",")).read_text().splitlines()}
        assert [line for line in lines if line.strip().rstrip(",") not in source] == []


def test_the_page_of_the_command_line_has_every_option() -> None:
    text = cli_page()
    for verb in VERBS:
        part = text[text.index(f"## calibrant {verb}\n") :].partition("\n## ")[0]
        assert f"Usage: calibrant {verb} [OPTIONS]" in part, verb
    assert "### calibrant bench run" in text and "--fail-if TEXT      exit with code 3" in text


def test_the_api_page_is_the_public_surface() -> None:
    said = page()
    titles = [title for title, _ in FAMILIES.values()]
    assert re.findall(r"^## (\w+)$", said, re.MULTILINE) == [*calibrant.__all__, *titles]
    for family in (calibrant.losses, calibrant.targets, calibrant.transforms):
        for name in family.__all__:
            assert name.isupper() or name == "Levels" or f"\n{name}(" in said, name
    for table in tables().values():
        assert all(f"### {name}\n" in said for name in table)
