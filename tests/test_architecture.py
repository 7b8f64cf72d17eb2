"""Architectural facts, tested: import order, file size, names, public surface, light import, no pickle."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import calibrant
from calibrant.cli.list_ import FAMILIES, rows

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "calibrant"
FILES = sorted(SOURCE.rglob("*.py"))

ORDER = [
    {"errors"},
    {"display"},
    {"provenance"},
    {"types"},
    {"protocols"},
    {"functional"},
    {"files"},
    {"executors"},
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
    {"integrations"},
    {"cli"},
]
"""A part imports itself and what stands in an earlier line; parts of one line do not know each other."""

LATE = {
    "calibrant.files.write",  # predictions.save
    "calibrant.functional.fingerprint.Fingerprint",  # predictions.fingerprint
    "calibrant.report.comparison.rows",  # repr(comparison)
    "calibrant.report.html.of_report",  # report.to_html
    "calibrant.report.numbers.brief",  # repr(report.by)
    "calibrant.report.verdict.shown",  # repr(report)
    "calibrant.report.verdict.verdict",  # report.verdict
}
"""What methods of the records in `types` and `metrics` import when they are called, though it stands to their right:
people expect to write `report.to_html(path)`. Nothing else may."""

RANK = {part: rank for rank, line in enumerate(ORDER) for part in line}
MAX_LINES = 300
PICKLERS = {"pickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
PICKLING = {"load", "loads", "dump", "dumps", "save"}
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "base", "tools"}
HEAVY = ("lightning", "pytorch_lightning", "torchmetrics", "matplotlib", "sklearn", "ray", "pyarrow", "jinja2", "scipy")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


def last_name(node: ast.expr) -> str:
    """`walk` of `os.walk`; what is not a name is empty."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@cache
def imported(path: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of every import in the file: at the top, in functions, by `import_module`."""
    package = ["calibrant", *path.relative_to(SOURCE).parts[:-1]]
    found: list[tuple[int, str]] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names if alias.name != "calibrant"]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "calibrant":
            found.append((node.lineno, f"calibrant.{node.attr}"))  # after a bare `import calibrant`
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [above, node.module]))
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and last_name(node.func) in {"import_module", "__import__"}:
            found += [(node.lineno, a.value) for a in node.args[:1] if isinstance(a, ast.Constant)]
    return found


def test_every_part_has_its_place() -> None:
    parts = {part_of(path) for path in FILES} - {"__init__"}
    assert parts <= set(RANK), f"not in the import order: {sorted(parts - set(RANK))}"


def test_imports_point_left() -> None:
    faults = []
    for path in FILES:
        own = part_of(path)
        for line, name in imported(path):
            pieces, where = name.split("."), f"{name_of(path)}:{line} imports {name}"
            if pieces[0] != "calibrant" or own == "__init__":  # the public surface sees everything, and loads it on use
                continue
            if own in ("types", "metrics") and name in LATE:
                continue
            if pieces[1] not in RANK:  # the package itself, or a public name of it
                if own != "cli" and pieces[1] != "__version__":
                    faults.append(f"{where}: import the module that defines it, not the public surface")
            elif pieces[1] != own and RANK[pieces[1]] >= RANK[own]:
                faults.append(f"{where}, which stands to the right of {own} (or beside it)")
    assert not faults, "\n".join(faults)


def test_a_file_is_one_idea() -> None:
    faults = []
    for path in FILES:
        text = path.read_text()
        if len(text.splitlines()) > MAX_LINES:
            faults.append(f"{name_of(path)} is longer than {MAX_LINES} lines: split it")
        if path.stem in DRAWERS or path.parent.name in DRAWERS:
            faults.append(f"{name_of(path)} is a drawer, not an idea")
        if text.strip() and not ast.get_docstring(tree(path)):
            faults.append(f"{name_of(path)} does not say what it is")
    assert not faults, "\n".join(faults)


def test_nothing_is_pickled() -> None:
    """CIFAR's own pickles go through an unpickler of ours that admits numpy arrays only."""
    faults = []
    for path in FILES:
        classes = [node for node in nodes(path) if isinstance(node, ast.ClassDef)]
        restricted = any("Unpickler" in ast.unparse(base) for c in classes for base in c.bases)
        for line, name in imported(path):
            package = name.split(".")[0]
            if package in PICKLERS and not (restricted and package == "pickle"):
                faults.append(f"{name_of(path)}:{line} imports {name}")
        for node in nodes(path):
            if not isinstance(node, ast.Call):
                continue
            where = f"{name_of(path)}:{node.lineno}"
            said = {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg in ("allow_pickle", "weights_only")}
            if said.get("allow_pickle", "False") != "False":
                faults.append(f"{where} allows pickle")
            called = ast.unparse(node.func) if last_name(node.func) in PICKLING else ""
            if called.startswith("pickle.") or called == "torch.save":
                faults.append(f"{where} calls {called}")
            if called == "torch.load" and said.get("weights_only") != "True":
                faults.append(f"{where}: torch.load without weights_only=True")
    assert not faults, "\n".join(faults)


def test_folders_are_listed_in_one_place() -> None:
    """`Path.glob` finds the temporary file of a write that was killed, and takes it for a result."""
    faults = []
    for path in [*FILES, *sorted((ROOT / "benchmarks").glob("*.py"))]:
        if name_of(path).endswith(("files/paths.py", "files/atomic.py")):
            continue
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                listing = node.func.attr in {"glob", "rglob", "iterdir", "scandir", "listdir"}
                if listing or (node.func.attr == "walk" and ast.unparse(node.func) == "os.walk"):
                    faults.append(f"{name_of(path)}:{node.lineno}: list folders by calibrant.files.paths.visible")
    assert not faults, "\n".join(faults)


def test_public_surface() -> None:
    names = list(calibrant._PUBLIC)
    assert names == sorted(names), "keep the table sorted"
    assert calibrant.__all__ == names
    hidden = {part_of(path) for path in FILES} & set(names)
    assert not hidden, f"importing the module calibrant.{sorted(hidden)} would replace the public name"
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


LOADS = """
import json, sys
import calibrant
heavy = [m for m in {heavy!r} if m in sys.modules]
reached = calibrant.metrics.METRICS["ece"].name  # a family after a bare import
from calibrant.cli import run
def loaded(*words):
    assert run([*words]) == 0
    return [m for m in sys.modules if m.startswith("calibrant.")]
plain = loaded("audit", "p.npz", "--no-intervals")
from calibrant.cli import audit
audit.BUDGET = 0.2  # seconds; the advice need not be good
page = loaded("audit", "p.npz", "--html", "r.html")
print(json.dumps([heavy, reached, plain, page, "matplotlib.pyplot" in sys.modules]))
"""


def test_what_is_not_used_is_not_loaded(tmp_path: Path) -> None:
    """After `import calibrant` and after audits of saved predictions, one after the other in one process."""
    z = np.random.default_rng(0).normal(size=(300, 4))
    np.savez(tmp_path / "p.npz", logits=z, labels=np.arange(300) % 4)
    words = [sys.executable, "-c", LOADS.format(heavy=HEAVY)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    heavy, reached, plain, page, pyplot = json.loads(done.stdout.splitlines()[-1])
    assert heavy == [], "`import calibrant` loads these"
    assert reached == "ece"
    assert not pyplot, "figures are drawn without matplotlib.pyplot, whose state is the caller's"
    parts = {name.split(".")[1] for name in page}
    assert not parts & {"attacks", "data", "diagnostics", "ensembles", "nn", "training"}, "an audit needs no model"
    assert len(page) <= 150, sorted(page)
    assert not {name.split(".")[1] for name in plain} & {"decisions", "executors"}


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


def test_every_entry_says_what_it_is() -> None:
    silent = [f"{family}: {name} has no docstring" for family in FAMILIES for name, line in rows(family) if not line]
    assert not silent, "\n".join(silent)
