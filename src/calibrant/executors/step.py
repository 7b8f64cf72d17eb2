"""A step of work, how it ended, and what an executor must be able to do.

Two commands may work at the same steps: whoever runs a step holds its lease, a lock on a folder that the kernel takes
back when the process ends, however it ends. The other one finds the step busy, and later done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from calibrant.errors import CalibrantError, FailedError
from calibrant.files import locks

Ending = Literal["done", "failed", "cut", "busy", "lost", "left", "skipped"]
"""`cut`: out of time, goes on later; `busy`: another command is at it; `lost`: its process died; `left`: not begun,
because it would not end in time; `skipped`: something that it needs did not get done."""


class OutOfTime(Exception):
    """Raised by a step at its deadline. What it has done so far is kept."""


class Step(Protocol):
    """Something to do. Steps travel to other processes, so they are plain records."""

    @property
    def key(self) -> str:
        """The content of what it makes: its inputs, the settings that change numbers, its edition."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Keys of the steps before it."""

    @property
    def gpu(self) -> bool:
        """Whether it wants the accelerator, where there is one."""

    @property
    def lease(self) -> Path | None:
        """The folder that is locked while it runs; None where no other command can be at it."""

    def done(self) -> bool: ...
    def seconds(self) -> float | None:
        """What is left of it, at the measured pace; None if nobody knows."""

    def run(self, deadline: float | None) -> Any:
        """What it returns travels with its outcome; most steps leave files and return nothing."""


@dataclass(frozen=True)
class Outcome:
    step: Step
    ending: Ending
    seconds: float = 0.0
    error: CalibrantError | None = None
    value: Any = None

    @property
    def why(self) -> str:
        return "" if self.error is None else str(self.error)


class Pool(Protocol):
    """An executor: it has room for some steps at a time."""

    def room(self, step: Step) -> bool: ...
    def start(self, step: Step, deadline: float | None) -> None: ...
    def wait(self) -> Sequence[Outcome]:
        """Steps that have ended, at least one of those that run, in a moment or later."""

    def close(self) -> None: ...


def attempt(step: Step, deadline: float | None) -> Outcome:
    """Run a step under its lease, whatever comes of it."""
    start = time.perf_counter()

    def ended(ending: Ending, error: CalibrantError | None = None, value: Any = None) -> Outcome:
        return Outcome(step, ending, time.perf_counter() - start, error, value)

    try:
        with nullcontext() if step.lease is None else locks.alone_in(step.lease):
            value = None if step.done() else step.run(deadline)  # another command may have done it since
        return ended("done", value=value)
    except locks.InUse:
        return ended("busy")
    except OutOfTime:
        return ended("cut")
    except CalibrantError as error:
        return ended("failed", error)
    except Exception as error:  # one step that fails must not end the rest; errors of other libraries may not travel
        return ended("failed", FailedError(f"{type(error).__name__}: {error}"))
