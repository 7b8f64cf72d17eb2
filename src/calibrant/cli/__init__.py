"""The command line: one file per verb, one table of verbs, one place that turns errors into exit codes.

0: done. 1: it failed. 2: the input is wrong (one line that names the thing and the remedy).
3: a gate (`--fail-if`) is not met. 130, 143: stopped by Ctrl-C or SIGTERM; what can be resumed says so.
JSON goes to stdout, everything for people with `--json` to stderr.
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
    "advise": "What to use, given what you may do, from measurements that ship with the package",
    "audit": "How trustworthy are these predictions, with intervals, and what to do next",
    "bench": "Measure the papers' tables again, one cell at a time, and compare",
    "compare": "Is the second better than the first, or is it noise? Paired, with Holm's correction over metrics",
    "decide": "Which answers to accept, with a guarantee: a rule for an accuracy, a share, sets or costs",
    "demo": "The whole pipeline on bundled data: train three ways, recalibrate, one table, an HTML report",
    "export": "Write a fitted map or a rule for other programs: formula and numbers (.json), or a graph (.onnx)",
    "fit": "Fit a map that makes confidence honest, and check that it does",
    "list": "List the methods of a family, one line each",
    "predict": "Run a model on a part of the data, alone or as an ensemble, and write its predictions",
    "probe": "Why networks are (un)calibrated: curvature, hard samples, feature maps, PEP, attacks, robustness",
    "stress": "Is the confidence still right when the world moves? Corruptions, sequences, foreign items; resumable",
    "train": "Train by a recipe: resumable, recorded, with predictions that audit, fit and compare take",
}
"""Verb → what it does. Its module in `calibrant.cli`, which has its name, loads when the verb is used: the overview and
`--version` need neither torch nor any verb."""


RESUMED = ("bench", "probe", "stress", "train")
"""Verbs that resume where they were stopped."""
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""The exit codes that shells use."""


def app(asked: str | None = None) -> typer.Typer:
    """All verbs from the table; only the one that is asked for is loaded, the others have a name and a line of help."""
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
        """Makes a neural network's confidence trustworthy, and proves it."""
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
            root.add_typer(found, name=verb, cls=Verbs)
        else:
            root.command(name=verb, cls=Verb, help=None if verb == asked else f"{about}.")(unfolded(found))
    return root


def load(verb: str) -> Any:
    """The verb's function, or its group of commands."""
    name = "list_" if verb == "list" else verb  # `list` is Python's own
    gc.disable()  # modules stay; looking for garbage among them takes a tenth of the time that torch needs, or a page
    try:
        return getattr(import_module(f"calibrant.cli.{name}"), name)
    finally:
        gc.freeze()
        gc.enable()


def _not_asked() -> None:
    raise AssertionError("a verb that is run is loaded first")


@cache
def command(asked: str | None) -> Any:
    """What parses a command line. Typer takes a tenth of a second to build it, which in-process callers pay once."""
    return typer.main.get_command(app(asked))


def run(argv: Sequence[str] | None = None) -> int:
    """Run and return the exit code. An exception becomes one line (`failures`), a traceback only on request."""
    words = sys.argv[1:] if argv is None else list(argv)
    asked = next((word for word in words if not word.startswith("-")), "")
    try:
        with warnings_as_notes():
            program = command(asked if asked in VERBS else None)
            result = program(args=words, prog_name="calibrant", standalone_mode=False)
        code = int(result) if isinstance(result, int) else 0
        return _stopped("interrupted", argv) if code == INTERRUPTED else code  # typer's own end of a Ctrl-C
    except typer.Exit as leave:
        return leave.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _stopped("interrupted", argv)
    except _Terminated:
        return _stopped("terminated", argv)
    except BrokenPipeError:
        return 1
    except Exception as error:
        return report(error)


def _stopped(how: str, argv: Sequence[str] | None) -> int:
    verb = next(iter(sys.argv[1:] if argv is None else argv), "")
    remedy = "; run the same command again to resume" if verb in RESUMED else ""
    from calibrant.files.locks import first_process

    if first_process():
        say(f"calibrant: {how}{remedy}", err=True)
    return TERMINATED if how == "terminated" else INTERRUPTED


class _Terminated(BaseException):
    """SIGTERM as an exception, so that progress bars restore the cursor and half-written files are removed."""


def _terminate(*_: object) -> None:
    raise _Terminated


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run())
