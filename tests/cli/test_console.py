"""Text from a name, a key, a column or a file cannot control the terminal."""

from __future__ import annotations

import ast
import io
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

from calibrant import files, predictions
from calibrant.cli import console, run
from calibrant.cli.layout import Console
from calibrant.errors import CalibrantWarning, escaped

RED, TURNED, SECOND = "\x1b[31m", "\u202egpj", "\x9b31m"
EVIL = f"a{RED}\n{TURNED}{SECOND}"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture
def said(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*argv: str) -> tuple[int, str, str]:
        code = run(argv)
        out, err = capsys.readouterr()
        assert not STEERS.search(out + err), repr(out + err)  # no terminal here: an ESC is never ours
        return code, out, err

    return call


def scores(n: int = 120, **fields: object) -> object:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, 3))
    return predictions(3 * z, (z + rng.gumbel(size=z.shape)).argmax(1), **fields)  # type: ignore[arg-type]


Said = Callable[..., tuple[int, str, str]]


def test_a_file_name(said: Said) -> None:
    name = f"{EVIL}.npz"
    code, _, err = said("audit", name)
    assert code == 2 and err.count("\n") == 1 and r"a\x1b[31m\n\u202egpj\u009b31m.npz: no such file" in err
    files.write(name, scores())  # type: ignore[arg-type]
    quick = ("--no-intervals", "--metrics", "nll,accuracy,gap")
    code, out, _ = said("audit", name, "--json", *quick)
    assert code == 0 and json.loads(out)[0]["file"] == name
    for argv in (("audit", name, *quick), ("audit", name, name, *quick), ("compare", name, name, "--replicates", "20")):
        code, out, _ = said(*argv)
        assert code == 0 and r"a\x1b[31m\n\u202egpj\u009b31m.npz" in out.replace("\n", "")
    code, out, _ = said("fit", name, "--method", "temperature", "-o", f"map{EVIL}")
    assert code == 0 and r"written to mapa\x1b[31m\n\u202egpj" in out
    code, out, _ = said("apply", f"map{EVIL}", name, "-o", f"out{EVIL}.npz")
    assert code == 0 and r"outa\x1b[31m\n\u202egpj" in out


def test_a_file_name_that_is_not_text(said: Said, here: Path) -> None:
    name = b"\xff.npz".decode("utf-8", "surrogateescape")
    try:
        files.write(here / name, scores())  # type: ignore[arg-type]
    except OSError:
        pytest.skip("this file system wants UTF-8")
    code, out, _ = said("audit", name, "--no-intervals", "--metrics", "nll,accuracy,gap")
    assert code == 0 and r"\udcff.npz" in out


def test_columns_and_keys(said: Said) -> None:
    Path("x.csv").write_text(f'"x","{EVIL}","label"\n1,2,0\n', "utf-8")
    code, _, err = said("audit", "x.csv")
    assert code == 2 and r"a\x1b[31m" in err and err.count("\n") == 1
    np.savez("x.npz", **{EVIL: np.zeros(3), "labels": np.zeros(3, int)})
    code, _, err = said("audit", "x.npz")
    assert code == 2 and r"a\x1b[31m\n" in err
    Path("y.csv").write_text(f"logit_0,logit_1,label\n1,2,cat{RED}\n", "utf-8")
    code, _, err = said("audit", "y.csv")
    assert code == 2 and err.count("\n") == 1
    Path("r.toml").write_text('"\\u001b[31m\\n" = 1\n', "utf-8")
    code, _, err = said("train", "r.toml", "-o", "run")
    assert code == 2 and "x1b[31m" in err and err.count("\n") == 1


def test_values_on_the_command_line(said: Said) -> None:
    assert said("audit", "x.npz", "--bins", EVIL)[0] == 2
    assert said("audit", "x.npz", "--metrics", EVIL)[0] == 2
    assert said("list", EVIL)[0] == 2
    assert said(EVIL)[0] == 2


def test_class_names_and_ids_on_the_page(said: Said) -> None:
    p = scores(classes=[EVIL, "b", "c"], ids=[f"{EVIL}{i}" for i in range(120)])
    name = f"{EVIL}.npz"
    files.write(name, p)  # type: ignore[arg-type]
    code, _, _ = said("audit", name, "--html", "r.html", "--no-intervals")
    page = Path("r.html").read_text("utf-8")
    assert code == 0 and not STEERS.search(page)
    assert page.count(r"a\x1b[31m\n\u202egpj\u009b31m") > 3  # the title, the class, the ids


def test_rich_output_keeps_its_own_colours() -> None:
    stream = io.StringIO()
    shown = Console(file=stream, force_terminal=True, color_system="standard", width=60)
    table = Table("name", "value")
    table.add_row(f"x{RED}{SECOND}", "[bold]1[/bold]")
    shown.print(table)
    shown.say(f"[green]{EVIL}", "bold")
    shown.say(f"[/bold]{RED}")
    text = stream.getvalue()
    assert "\x1b[1m" in text and RED not in text and "\x9b" not in text and "\u202e" not in text
    assert r"[green]a\x1b[31m\n" in text and r"[/bold]\x1b[31m" in text


def test_a_warning_is_one_line_for_people(said: Said) -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(3), 100)
    np.savez(f"{RED}.npz", logits=p, labels=p.argmax(1))
    with warnings.catch_warnings():
        warnings.simplefilter("default", CalibrantWarning)
        code, _, err = said("fit", f"{RED}.npz", "--method", "temperature")
    assert code == 0 and err.count("\n") == 1
    assert err.startswith(r"note: \x1b[31m.npz: these logits look like probabilities")


def test_ordinary_text_is_unchanged() -> None:
    text = "σ = 0.5 … 100% – naïve \U0001f642 漢字"
    assert escaped(text) == text and escaped("a\nb", lines=True) == "a\nb"


def test_all_output_goes_through_the_console() -> None:
    """In `cli`, lines go through `console`; elsewhere only progress bars print, and they escape their text."""
    source = Path(console.__file__).parents[1]
    for path in source.rglob("*.py"):
        text, ours = path.read_text("utf-8"), "cli" in path.relative_to(source).parts
        if path.name == "console.py" or not re.search(r"print\(|echo\(|stderr\.write|rich\.console import", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "sys.stderr.write"):
                inside = not ours and ast.unparse(node.args[0]).startswith("escaped(")
                assert inside, f"{path.relative_to(source)}:{node.lineno} writes past the console's border"
            if ours and isinstance(node, ast.ImportFrom) and node.module == "rich.console":
                assert "Console" not in {alias.name for alias in node.names}, path.name
