"""The command line: one file per verb, one table of verbs, one place that turns errors into exit codes.

Exit codes: 0 done; 1 failed; 2 the input is wrong (one line names what and how to mend it); 3 a gate (`--fail-if`) is
not met; 130 and 143 stopped by Ctrl-C or SIGTERM (one line says whether the same command resumes). With `--json`, JSON
goes to stdout and everything for people to stderr.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer

from calibrant.cli.console import block, say, warnings_as_notes
from calibrant.cli.failures import report
from calibrant.cli.help import Verb, Verbs
from calibrant.cli.options import unfolded

VERBS: dict[str, str] = {
    "apply": "Apply a fitted map or a rule to predictions",
    "advise": "Recommend a method, given what you may do, from measurements that ship with the package",
    "audit": "Judge how trustworthy predictions are, with intervals, and say what to do next",
    "bench": "Measure the papers' tables again, one cell at a time, and compare",
    "compare": "Test whether a predictor is better than another: paired, with Holm's correction over metrics",
    "decide": "Choose which answers to accept, with a guarantee: a rule for an accuracy, a share, sets or costs",
    "demo": "Run the whole pipeline on bundled data: train three ways, recalibrate, one table, an HTML report",
    "export": "Write a fitted map or a rule for other programs: formula and numbers (.json), or a graph (.onnx)",
    "fit": "Fit a map that makes confidence honest, and check that it does",
    "list": "List the methods of a family, one line each",
    "predict": "Run a model on a part of the data, alone or as an ensemble, and write its predictions",
    "probe": "Measure why networks are (un)calibrated: curvature, hard samples, feature maps, PEP, attacks, robustness",
    "stress": "Measure confidence under shift: corruptions, sequences, foreign items; an unfinished run is resumed",
    "train": "Train by a recipe and write predictions for audit, fit and compare; an unfinished run is resumed",
}
"""Verb → what it does. The module `calibrant.cli.VERB` is loaded when the verb is used, so that the overview and
`--version` load neither torch nor any verb."""


RESUMED = ("bench", "probe", "stress", "train")
"""Verbs that resume where they were stopped."""
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""Exit codes, as shells use them."""


def app(asked: str | None = None) -> typer.Typer:
    """The program with all verbs. Only the verb `asked` is loaded; the others have a name and a line of help."""
    root = typer.Typer(
        name="calibrant",
        help="Makes a neural network's confidence trustworthy, and proves it.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        cls=Verbs,
    )

    @root.callback(invoke_without_command=True)
    def _root(
        context: typer.Context, version: Annotated[bool, typer.Option("--version", help="print the version")] = False
    ) -> None:
        if version:
            from calibrant import __version__

            say(f"calibrant {__version__}")
            raise typer.Exit()
        if context.invoked_subcommand is None:
            block(context.get_help())

    for verb, about in VERBS.items():
        found = load(verb) if verb == asked else _not_asked
        if isinstance(found, typer.Typer):
            for each in found.registered_commands:
                each.cls = Verb
            root.add_typer(found, name=verb, cls=Verbs, help=f"{about}.")
        else:
            root.command(name=verb, cls=Verb, help=f"{about}.")(unfolded(found))
    return root


def load(verb: str) -> Any:
    """The verb's function, or its group of commands."""
    name = "list_" if verb == "list" else verb  # `list` is Python's own
    gc.disable()  # loading makes no garbage, and looking for it takes a tenth of the time that torch needs
    try:
        return getattr(import_module(f"calibrant.cli.{name}"), name)
    finally:
        gc.freeze()
        gc.enable()


def _not_asked() -> None:
    raise AssertionError("a verb must be loaded before it runs")


@cache
def command(asked: str | None) -> Any:
    """The parser of command lines, made once per process: typer takes a tenth of a second to build it."""
    return typer.main.get_command(app(asked))


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code. Any exception becomes one line on stderr (`failures`)."""
    words = sys.argv[1:] if argv is None else list(argv)
    asked = next((word for word in words if not word.startswith("-")), "")
    try:
        with warnings_as_notes():
            program = command(asked if asked in VERBS else None)
            result = program(args=words, prog_name="calibrant", standalone_mode=False)
        code = int(result) if isinstance(result, int) else 0
        return _stopped("interrupted", asked) if code == INTERRUPTED else code  # typer caught a Ctrl-C
    except typer.Exit as leave:
        return leave.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _stopped("interrupted", asked)
    except _Terminated:
        return _stopped("terminated", asked)
    except BrokenPipeError:
        return 1
    except Exception as error:
        return report(error)


def _stopped(how: str, verb: str) -> int:
    remedy = "; run the same command again to resume" if verb in RESUMED else ""
    from calibrant.files.locks import first_process

    if first_process():
        say(f"calibrant: {how}{remedy}", err=True)
    return TERMINATED if how == "terminated" else INTERRUPTED


class _Terminated(BaseException):
    """SIGTERM as an exception: progress bars restore the cursor, and half-written files are removed."""


def _terminate(*_: object) -> None:
    raise _Terminated


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run())
