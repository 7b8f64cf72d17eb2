"""The command line: one file a verb, one table of verbs, one place that turns errors into exit codes.

0: done. 1: it failed. 2: the input is wrong (one line that names the thing and the remedy).
3: a gate (`--fail-if`) is not met. 130, 143: stopped by Ctrl-C or SIGTERM; what can be resumed says so.
JSON goes to stdout, everything for people with `--json` to stderr.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer

from calibrant import __version__
from calibrant.cli.failures import report
from calibrant.files.locks import first_process

VERBS: dict[str, str] = {
    "apply": "apply",
    "audit": "audit",
    "bench": "bench",
    "compare": "compare",
    "demo": "demo",
    "export": "export",
    "fit": "fit",
    "list": "list_",
    "predict": "predict",
    "probe": "probe",
    "stress": "stress",
    "train": "train",
}
"""Verb → the module in `calibrant.cli` that defines a function of the same name (`list` → `list_`)."""


RESUMED = ("bench", "probe", "stress", "train")
"""Verbs that go on where they were stopped."""
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""What shells call these ends."""


def app() -> typer.Typer:
    """All verbs, assembled from the table."""
    root = typer.Typer(
        name="calibrant",
        help="Makes a neural network's confidence trustworthy, and proves it.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )

    @root.callback(invoke_without_command=True)
    def _root(
        context: typer.Context, version: Annotated[bool, typer.Option("--version", help="print it")] = False
    ) -> None:
        """Makes a neural network's confidence trustworthy, and proves it."""
        if version:
            typer.echo(f"calibrant {__version__}")
            raise typer.Exit()
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    for verb, module in VERBS.items():
        loaded = import_module(f"calibrant.cli.{module}")
        if isinstance(getattr(loaded, module), typer.Typer):
            root.add_typer(getattr(loaded, module), name=verb)
        else:
            root.command(name=verb)(getattr(loaded, module))
    return root


@cache
def command() -> Any:
    """What parses a command line. Typer takes a tenth of a second to build it, which in-process callers pay once."""
    return typer.main.get_command(app())


def run(argv: Sequence[str] | None = None) -> int:
    """Run and return the exit code. An exception becomes one line (`failures`), a traceback only on request."""
    try:
        result = command()(args=list(argv) if argv is not None else None, prog_name="calibrant", standalone_mode=False)
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
    remedy = "; give the same command again to go on" if verb in RESUMED else ""
    if first_process():
        print(f"calibrant: {how}{remedy}", file=sys.stderr)
    return TERMINATED if how == "terminated" else INTERRUPTED


class _Terminated(BaseException):
    """SIGTERM as an exception, so that bars give the cursor back and half-written files go."""


def _terminate(*_: object) -> None:
    raise _Terminated


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run())
