"""`python -m docs.make_methods` writes docs/methods.md from the tables in the code; a test compares."""

from __future__ import annotations

from pathlib import Path

from calibrant.cli.list_ import FAMILIES, rows
from calibrant.metrics import METRICS

PAGE = Path(__file__).with_name("methods.md")

HEAD = """# Methods

Made from the tables in the code by `python -m docs.make_methods` (which `make docs` runs); `calibrant list FAMILY`
shows the same. Each name is what you write on the command line and in Python.
"""

BETTER = {"low": "lower", "high": "higher", "zero": "nearer to zero"}


def page() -> str:
    return "\n".join([HEAD, *(section(family) for family in FAMILIES if rows(family))])


def section(family: str) -> str:
    what = FAMILIES[family][2]
    lines = [f"## {family}", "", f"{what[0].upper()}{what[1:]}.", ""]
    if family == "metrics":
        lines += ["| name | what it is | about | better |", "|---|---|---|---|"]
        lines += [f"| `{m.name}` | {cell(m.title)} | {m.family} | {BETTER[m.better]} |" for m in METRICS.values()]
    else:
        lines += ["| name | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {cell(text)} |" for name, text in rows(family)]
    return "\n".join([*lines, ""])


def cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE.name}")
