"""The page of the command line, made from `--help` of every verb whenever the site is built (an mkdocs hook)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calibrant.cli import VERBS, command

HEAD = """# Command line

Every verb takes `--json`: JSON on stdout, everything for people on stderr. Exit codes: 0 done, 1 failed, 2 the input is
wrong (one line says what and how to mend it), 3 a gate (`--fail-if`) is not met.
"""
WIDTH = 80


def page() -> str:
    return "\n".join([HEAD, *(line for verb in VERBS for line in section(verb, command(verb), "##"))])


def section(words: str, program: Any, level: str) -> Iterator[str]:
    """A heading and what `calibrant WORDS --help` prints; then the verbs inside, as those of `bench`."""
    context = program.make_context(
        "calibrant", [], resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH
    )
    found = program
    for word in words.split():
        found = found.commands[word]
        context = type(context)(found, info_name=word, parent=context, terminal_width=WIDTH, max_content_width=WIDTH)
    yield from (f"{level} calibrant {words}", "", "```text", found.get_help(context).rstrip(), "```", "")
    for inner in getattr(found, "commands", {}):
        yield from section(f"{words} {inner}", program, f"{level}#")


def on_files(files: Any, config: Any) -> Any:
    """mkdocs calls this before it builds."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "cli.md", content=page()))
    return files
