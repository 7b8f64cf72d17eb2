"""What a user can get wrong. Every message names the thing (file, row, key, value) and the remedy.

The command line turns any `CalibrantError` into one line on stderr and the exit code it carries
(`cli/failures.py`, which also has a line for everything else).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches


class CalibrantError(Exception):
    """Root of all errors a user can cause. `exit_code` is what the command line ends with."""

    exit_code = 2


class InputError(CalibrantError, ValueError):
    """Arrays or settings that cannot mean what the caller hopes: shape, range, dtype, value."""


class NoGradientError(InputError):
    """Not one of the inputs has a gradient to follow: constant logits, or a flat place that all of them stand on."""


class NotApplicableError(InputError):
    """A diagnostic that says nothing about this model; the others that were asked for still run."""


class FileError(CalibrantError, OSError):
    """A file that is missing, truncated, of an unknown kind, or lacks a key or a column."""


class SplitError(CalibrantError, ValueError):
    """Fitting on test, or reporting on what was fitted on."""


class MapError(CalibrantError, ValueError):
    """A saved map that is truncated, edited, from a newer version, or made for other classes."""


class UnknownNameError(CalibrantError, KeyError):
    """A name that is in no table."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0])


class MissingDependencyError(CalibrantError, ImportError):
    """An optional package is needed; the message says how to install it."""


class GateNotMet(CalibrantError):
    """A `--fail-if` condition holds: not a mistake of the user's, so it has a code of its own."""

    exit_code = 3


class RefusedError(CalibrantError):
    """The tool did the work and refuses the result (`--strict`): it failed, exit code 1."""

    exit_code = 1


class FailedError(CalibrantError):
    """Part of the work failed, and the rest was done: exit code 1."""

    exit_code = 1


class DivergedError(CalibrantError):
    """Training met a loss that is not finite: it failed, the last good checkpoint stands, exit code 1."""

    exit_code = 1


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. torch has no class of its own for it on a CPU, and Rust's libraries have none at all."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text


class CalibrantWarning(UserWarning):
    """What is probably a slip: the numbers are computed as asked for, and may not mean what the caller hopes."""


_NOT_THE_CALLER = ("calibrant", "contextlib", "torch", "torchmetrics")


def warn(message: str) -> None:
    """A `CalibrantWarning` at the caller's own line, the nearest outside this package and torch's."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_CALLER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CalibrantWarning, stacklevel=level)


_STEERING = (
    *range(0x20),
    *range(0x7F, 0xA0),  # delete, and the C1 controls: U+009B is ESC [ in one character
    *(0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)),  # ends of line, turns of direction
    *range(0xD800, 0xE000),  # bytes of a file name that are no text
)
_SHOWN = {code: f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}" for code in _STEERING}
_SHOWN |= {ord(character): repr(character)[1:-1] for character in "\t\n\r"}
_SHOWN_IN_LINES = {code: shown for code, shown in _SHOWN.items() if chr(code) != "\n"}


def escaped(text: str, *, lines: bool = False) -> str:
    """Somebody's text to look at: characters that steer a terminal are spelled out, as \\x1b and \\u202e.

    So are line breaks, unless `lines` says that they are ours. JSON stays JSON: it has escaped what is below U+0020.
    """
    return text.translate(_SHOWN_IN_LINES if lines else _SHOWN)


ELSEWHERE = {
    "auc": "auroc",
    "crossentropy": "nll",
    "expectedcalibrationerror": "ece",
    "logloss": "nll",
    "mce": "ece_max",
    "negativeloglikelihood": "nll",
    "rocauc": "auroc",
}
"""What other libraries call a metric, and what it is called here."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that was probably meant; case and underscores do not count.

    That is its name here if other libraries call it so, else one that begins with these letters, else the most similar.
    """
    plain = {k.lower().replace("_", ""): k for k in sorted(known) if not k.startswith("_")}
    asked = name.lower().replace("_", "")
    if asked not in plain and ELSEWHERE.get(asked) in plain.values():
        return ELSEWHERE[asked]
    begun = [k for k in plain if len(asked) > 2 and k.startswith(asked)]
    near = [min(begun, key=len)] if begun else get_close_matches(asked, list(plain), n=1, cutoff=cutoff)
    return plain[near[0]] if near else None


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that a module does not have."""
    near = None if name.startswith("_") else nearest(name, known)
    hint = f"; did you mean {module}.{near}?" if near else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def no_member(kind: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that an object does not have."""
    near = None if name.startswith("_") else nearest(name, known)
    return AttributeError(f"a {kind} has no {name!r}" + (f"; did you mean {near!r}?" if near else ""))


def suggest_names(module: str) -> None:
    """Let a wrong name in this module say what was probably meant, out of its `__all__`."""
    here = sys.modules[module]

    def missing(name: str) -> None:
        raise no_attribute(module, name, here.__all__)

    vars(here)["__getattr__"] = missing  # set, not defined: type checkers would take any name


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name in no table: names the nearest valid one, else lists them all."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}")
