"""Architectural facts, tested: import order, file size, names, public surface, light import, no pickle."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import calibrant
from calibrant.cli.list_ import FAMILIES, rows

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "calibrant"
FILES = sorted(SOURCE.rglob("*.py"))

ORDER = [
    {"errors"},
    {"types"},
    {"protocols"},
    {"functional"},
    {"files"},
    {"metrics"},
    {"posthoc"},
    {"decisions"},
    {"data", "nn"},
    {"targets", "losses", "transforms"},
    {"attacks", "shifts"},
    {"training"},
    {"ensembles"},
    {"diagnostics"},
    {"report"},
    {"papers"},
    {"bench"},
    {"cli"},
]
"""A part imports itself and what stands in an earlier line; parts of one line do not know each other."""

RANK = {part: rank for rank, line in enumerate(ORDER) for part in line}
MAX_LINES = 300
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "base", "tools"}
HEAVY = ("lightning", "pytorch_lightning", "torchmetrics", "matplotlib", "sklearn", "ray", "pyarrow", "jinja2", "scipy")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in the file: at the top, in functions, by `import_module`."""
    package = ["calibrant", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name != "calibrant")
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "calibrant":
            yield node.lineno, f"calibrant.{node.attr}"  # after a bare `import calibrant`
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [above, node.module]))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            yield from ((node.lineno, a.value) for a in node.args[:1] if isinstance(a, ast.Constant))


def test_every_part_has_its_place() -> None:
    parts = {part_of(path) for path in FILES} - {"__init__"}
    assert parts <= set(RANK), f"not in the import order: {sorted(parts - set(RANK))}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_left(path: Path) -> None:
    own = part_of(path)
    if own == "__init__":  # the public surface sees everything, and loads it on use
        return
    for line, name in imported(path):
        pieces = name.split(".")
        if pieces[0] != "calibrant":
            continue
        other = pieces[1]
        if other not in RANK:  # the package itself, or a public name of it
            assert own == "cli" or other == "__version__", (
                f"{name_of(path)}:{line} imports {name}: import the module that defines it, not the public surface"
            )
            continue
        assert other == own or RANK[other] < RANK[own], (
            f"{name_of(path)}:{line} imports {name}, which stands to the right of {own} (or beside it)"
        )


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_one_idea(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES, f"{name_of(path)} is longer than {MAX_LINES} lines: split it"
    assert path.stem not in DRAWERS and path.parent.name not in DRAWERS, f"{name_of(path)} is a drawer, not an idea"
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{name_of(path)} does not say what it is"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_pickled(path: Path) -> None:
    """CIFAR's own pickles go through an unpickler of ours that admits numpy arrays only."""
    tree = ast.parse(path.read_text())
    restricted = any(
        isinstance(n, ast.ClassDef) and "Unpickler" in "".join(map(ast.unparse, n.bases)) for n in ast.walk(tree)
    )
    for line, name in imported(path):
        banned = name.split(".")[0] in {"pickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
        assert not banned or (restricted and name.split(".")[0] == "pickle"), f"{name_of(path)}:{line} imports {name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, where = ast.unparse(node.func), f"{name_of(path)}:{node.lineno}"
        said = {k.arg: ast.unparse(k.value) for k in node.keywords}
        assert said.get("allow_pickle", "False") == "False", f"{where} allows pickle"
        assert called not in {"pickle.load", "pickle.loads", "pickle.dump", "pickle.dumps", "torch.save"}, where
        if called == "torch.load":
            assert said.get("weights_only") == "True", f"{where}: torch.load without weights_only=True"


@pytest.mark.parametrize("path", [*FILES, *sorted((ROOT / "benchmarks").glob("*.py"))], ids=name_of)
def test_folders_are_listed_in_one_place(path: Path) -> None:
    """`Path.glob` finds the temporary file of a write that was killed, and takes it for a result."""
    if name_of(path).endswith(("files/listing.py", "files/atomic.py")):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            listing = node.func.attr in {"glob", "rglob", "iterdir", "scandir", "listdir"}
            listing |= ast.unparse(node.func) == "os.walk"
            assert not listing, f"{name_of(path)}:{node.lineno}: list folders by calibrant.files.listing.visible"


def test_public_surface() -> None:
    names = list(calibrant._PUBLIC)
    assert names == sorted(names), "keep the table sorted"
    assert calibrant.__all__ == names
    for name in names:
        found = getattr(calibrant, name)
        assert found is getattr(import_module(calibrant._PUBLIC[name]), name)
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_the_kind'"):
        calibrant.nothing_of_the_kind  # noqa: B018


def test_type_checkers_see_the_same_surface() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    seen = {
        alias.asname or alias.name: node.module
        for guard in tree.body
        if isinstance(guard, ast.If) and ast.unparse(guard.test) == "TYPE_CHECKING"
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == calibrant._PUBLIC


def test_import_is_light() -> None:
    code = f"import sys, calibrant; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]", f"`import calibrant` loads {out.strip()}"


def test_a_report_on_saved_predictions_loads_nothing_that_needs_a_model() -> None:
    code = """
import sys, calibrant.cli.audit, calibrant.report.html
print(*{name.split(".")[1] for name in sys.modules if name.startswith("calibrant.")})
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not set(out.split()) & {"attacks", "data", "diagnostics", "ensembles", "nn", "training"}, out


def test_no_path_of_one_machine() -> None:
    machine = re.compile(r"(?<![\w.])/(root|home|work|Users|mnt|opt|tmp)/\w")
    for path in [*FILES, *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not machine.search(line), f"{name_of(path)}:{number} names a path of one machine: {line.strip()}"


def test_typed() -> None:
    assert (SOURCE / "py.typed").is_file()


def test_the_page_of_methods_is_the_tables() -> None:
    from docs.make_methods import PAGE, page

    remedy = "the tables have changed: run `python -m docs.make_methods` and commit docs/methods.md"
    for family in FAMILIES:
        for name, _ in rows(family):
            assert f"| `{name}` |" in PAGE.read_text(), f"{family}: {name} is not in the docs; {remedy}"
    assert PAGE.read_text() == page(), remedy


@pytest.mark.parametrize("family", FAMILIES)
def test_every_entry_says_what_it_is(family: str) -> None:
    for name, line in rows(family):
        assert line, f"{family}: {name} has no docstring"


def test_families_are_reached_after_a_bare_import() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import calibrant; print(calibrant.posthoc.attach.__name__, calibrant.metrics.METRICS['ece'].name)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["attach", "ece"]
