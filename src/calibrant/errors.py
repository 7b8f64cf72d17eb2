"""The errors that a user can cause. Every message names the thing (file, row, key, value) and the remedy.

The command line turns a `CalibrantError` into one line on stderr and the exit code of its class (`cli/failures.py`).
"""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class CalibrantError(Exception):
    """Base class of all errors that a user can cause. `exit_code` is the exit code of the command line."""

    exit_code = 2


class InputError(CalibrantError, ValueError):
    """Arrays or settings with a wrong shape, range, dtype or value."""


class NoGradientError(InputError):
    """The gradient vanishes at every input, e.g. because the logits are constant."""


class NotApplicableError(InputError):
    """A diagnostic that does not apply to this model; other diagnostics still run."""


class FileError(CalibrantError, OSError):
    """A file that is missing, truncated, of an unknown kind, or lacks a key or a column."""


class SplitError(CalibrantError, ValueError):
    """Fitting on a test split, or reporting on items that were fitted on."""


class MapError(CalibrantError, ValueError):
    """A saved map that is truncated, edited, from a newer version, or for other classes."""


class UnknownNameError(CalibrantError, KeyError):
    """A name that is in no table."""

    def __str__(self) -> str:  # KeyError shows the repr
        return str(self.args[0])


class MissingDependencyError(CalibrantError, ImportError):
    """An optional package is missing; the message says how to install it."""


class GateNotMet(CalibrantError):
    """A `--fail-if` condition holds. This is no mistake of the user, so it has its own exit code."""

    exit_code = 3


class RefusedError(CalibrantError):
    """The work was done, but the result is refused (`--strict`)."""

    exit_code = 1


class FailedError(CalibrantError):
    """Part of the work failed; the rest was done."""

    exit_code = 1


class DivergedError(CalibrantError):
    """The training loss is not finite; the last good checkpoint is kept."""

    exit_code = 1


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. torch on the CPU and Rust libraries have no exception class for it."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text


def disk_full(error: OSError) -> bool:
    """Whether there is no room for a file, on the disk or in the user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class CalibrantWarning(UserWarning):
    """A probable mistake: the numbers are computed as asked for, but may not mean what the caller expects."""


_INTERNAL = ("calibrant", "contextlib", "torch", "torchmetrics")


def warn(message: str) -> None:
    """Give a `CalibrantWarning` that points at the caller's line, outside this package and torch."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INTERNAL:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CalibrantWarning, stacklevel=level)


_CONTROL = (
    *range(0x20),
    *range(0x7F, 0xA0),  # delete, and the C1 controls: U+009B is ESC [ in one character
    *(0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)),  # line separators, text direction
    *range(0xD800, 0xE000),  # bytes of a file name that are not text
)
_SHOWN = {code: f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}" for code in _CONTROL}
_SHOWN |= {ord(character): repr(character)[1:-1] for character in "\t\n\r"}
_SHOWN_IN_LINES = {code: shown for code, shown in _SHOWN.items() if chr(code) != "\n"}


def escaped(text: str, *, lines: bool = False) -> str:
    """The text with control characters spelled out, as \\x1b and \\u202e, so that it cannot control a terminal.

    Line breaks are spelled out too, unless `lines` is true. JSON stays JSON: it escapes what is below U+0020 itself.
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
"""Name of a metric in other libraries → its name here, lower case without underscores."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that was probably meant, ignoring case and underscores; None if none is similar.

    A name from another library comes first, then the shortest that begins with these letters, then the most similar.
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
    """Make a wrong name in this module raise an error that suggests the nearest one of its `__all__`."""
    here = sys.modules[module]

    def missing(name: str) -> None:
        raise no_attribute(module, name, here.__all__)

    vars(here)["__getattr__"] = missing  # with a defined `__getattr__`, type checkers would accept any name


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Turn whatever error the user's own code raises inside into an `InputError` that names it."""
    try:
        yield
    except CalibrantError:
        raise
    except Exception as error:
        raise InputError(f"{what} failed with {type(error).__name__}: {error}") from error


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is in no table. It suggests the nearest valid name, else lists all of them."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}")
