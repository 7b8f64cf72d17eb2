"""The protocols of a step of work and of an executor, and the outcome of a step.

Two commands may work on the same steps. The one that runs a step holds its lease, a lock on a folder that the kernel
releases when the process ends, however it ends. The other one finds the step busy, and later done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from calibrant.errors import CalibrantError, FailedError
from calibrant.files import locks

Ending = Literal["done", "failed", "cut", "busy", "lost", "left", "skipped"]
"""`cut`: out of time, can be resumed; `busy`: another command runs it; `lost`: its process died; `left`: not started,
because it would not end in time; `skipped`: a step that it needs did not get done."""


class OutOfTime(Exception):
    """Raised by a step at its deadline; its progress so far is on disk."""


class Step(Protocol):
    """A unit of work. Steps are sent to other processes, so they are plain records."""

    @property
    def key(self) -> str:
        """A hash of all that decides the output: inputs, the settings that change numbers, the edition."""

    @property
    def name(self) -> str:
        """The name that people see."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Keys of the steps that must be done before this one."""

    @property
    def gpu(self) -> bool:
        """Whether the step wants the accelerator, if there is one."""

    @property
    def lease(self) -> Path | None:
        """The folder that is locked while the step runs; None if no other command can run the same step."""

    def done(self) -> bool: ...
    def seconds(self) -> float | None:
        """Seconds that are left at the measured pace; None if no pace is known."""

    def run(self, deadline: float | None) -> None:
        """Do the work and write its output."""


@dataclass(frozen=True)
class Outcome:
    step: Step
    ending: Ending
    seconds: float = 0.0
    error: CalibrantError | None = None

    @property
    def why(self) -> str:
        return "" if self.error is None else str(self.error)


class Pool(Protocol):
    """An executor that runs some steps at a time."""

    def room(self, step: Step) -> bool: ...
    def start(self, step: Step, deadline: float | None) -> None: ...
    def wait(self) -> Sequence[Outcome]:
        """Wait until at least one running step ends; return the outcomes."""

    def close(self) -> None: ...


def attempt(step: Step, deadline: float | None) -> Outcome:
    """Run a step under its lease and return its outcome; no error of the step is raised."""
    start = time.perf_counter()

    def ended(ending: Ending, error: CalibrantError | None = None) -> Outcome:
        return Outcome(step, ending, time.perf_counter() - start, error)

    try:
        with nullcontext() if step.lease is None else locks.alone_in(step.lease):
            if not step.done():  # another command may have done it meanwhile
                step.run(deadline)
        return ended("done")
    except locks.InUse:
        return ended("busy")
    except OutOfTime:
        return ended("cut")
    except CalibrantError as error:
        return ended("failed", error)
    except Exception as error:  # a failing step must not stop the others; a foreign error may not be picklable
        return ended("failed", FailedError(f"{type(error).__name__}: {error}"))
