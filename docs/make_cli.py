"""The page of the command line, made from the verbs themselves whenever the site is built (an mkdocs hook)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calibrant.cli import VERBS, command

HEAD = """# Command line

Every verb takes `--json` (JSON on stdout, everything for people on stderr) and `--help`. Exit codes: 0 done, 1 failed,
2 the input is wrong (one line says what and how to mend it), 3 a gate (`--fail-if`) is not met.
"""


def page() -> str:
    return "\n".join([HEAD, *(line for verb in VERBS for line in section(f"calibrant {verb}", found(verb), "##"))])


def found(verb: str) -> Any:
    """The verb as click sees it."""
    return command(verb).commands[verb]


def section(name: str, verb: Any, level: str) -> Iterator[str]:
    """A heading, what it does, and a table of its arguments and options; then those of its own verbs."""
    yield from (f"{level} {name}", "", cell(verb.help or verb.short_help or ""), "")
    shown = [p for p in verb.params if p.name != "help" and not getattr(p, "hidden", False)]
    if shown:
        yield from ("| | what it is | default |", "|---|---|---|")
        yield from (row(p) for p in shown)
        yield ""
    for inner, each in getattr(verb, "commands", {}).items():
        yield from section(f"{name} {inner}", each, f"{level}#")


def row(p: Any) -> str:
    written = (
        (p.metavar or p.name).upper() if p.param_type_name == "argument" else " ".join([*p.opts, *p.secondary_opts])
    )
    plain = isinstance(p.default, (str, int, float)) and not isinstance(p.default, bool)
    default = "required" if p.required else f"`{p.default}`" if plain and p.default != "" else ""
    return f"| `{written}` | {cell(p.help or '')} | {default} |"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def on_files(files: Any, config: Any) -> Any:
    """mkdocs calls this before it builds."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "cli.md", content=page()))
    return files
