"""Tell how far the steps are: a line when a step ends, and while it runs, after ten seconds and then once a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from calibrant.executors import Outcome, Pool, Step

FIRST, EVERY = 10.0, 60.0
"""Seconds until the first line of a step, and between its further lines."""


class Reporting:
    """A pool that says how far its steps are. A step may have `progress()`: some words, or None if it shows a bar."""

    def __init__(self, pool: Pool, say: Callable[[str], None]) -> None:
        self._pool, self._say, self._begun = pool, say, time.monotonic()
        self._running: dict[str, tuple[Step, float]] = {}  # with the time of the start
        self._next: dict[str, float] = {}  # when the next line is due
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)

    def room(self, step: Step) -> bool:
        return self._pool.room(step)

    def start(self, step: Step, deadline: float | None) -> None:
        now = time.monotonic()
        self._next[step.key] = now + FIRST  # before the thread can see the step
        self._running[step.key] = step, now
        if self._thread.ident is None:
            self._thread.start()
        self._pool.start(step, deadline)

    def wait(self) -> Sequence[Outcome]:
        outcomes = self._pool.wait()
        for outcome in outcomes:
            self._running.pop(outcome.step.key)
        return outcomes

    def close(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()  # it must not print while the interpreter shuts down
        self._pool.close()

    def ended(self, outcome: Outcome) -> None:
        """Say how a step ended; a skipped one follows from the end of another."""
        words = {
            "done": f"{outcome.seconds:.0f} s",
            "failed": f"failed, {outcome.why}",
            "cut": "out of time; the same command resumes it",
            "left": "not started: it would not end in time",
        }
        if outcome.ending in words:
            self._tell(outcome.step, words[outcome.ending])

    def _report(self) -> None:
        while not self._ended.wait(FIRST / 10):
            for step, start in list(self._running.values()):
                now = time.monotonic()
                if now >= self._next[step.key]:
                    self._next[step.key] = now + EVERY
                    words = getattr(step, "progress", lambda: "")()
                    if words is not None:
                        self._tell(step, words or f"running for {now - start:.0f} s")

    def _tell(self, step: Step, words: str) -> None:
        self._say(f"[{time.monotonic() - self._begun:6.0f} s] {step.name}: {words}")
