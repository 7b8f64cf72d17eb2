"""Schedule steps: each starts when the steps it needs are done, the pool has room, and it should end in time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from calibrant.errors import FailedError
from calibrant.executors.step import Outcome, Pool, Step

TRIES = 3
"""How often a step is started if its process dies."""
RECHECK = 0.5
"""Seconds between two looks at a step that another command is running."""


def execute(
    steps: Sequence[Step], pool: Pool, deadline: float | None = None, reserve: float = 0.0
) -> Iterator[Outcome]:
    """Run all steps that are not done, earlier ones first where possible; yield the outcome of each as it ends.

    Only steps that should end before `deadline` (by `time.time()`) are started. A step that needs more than all the
    time from now to the deadline can only be done in parts: it is started if at least half of that time is left. Steps
    that want the accelerator must end `reserve` seconds earlier, so that steps that need their output still have time.
    """
    begun = time.time()
    waiting = {step.key: step for step in steps if not step.done()}
    running: set[str] = set()
    tries: Counter[str] = Counter()

    def end(step: Step) -> float | None:
        return None if deadline is None else deadline - reserve * step.gpu

    try:
        while waiting:
            for step in list(waiting.values()):
                if step.key in running or step.key not in waiting:  # `_skipped` may have removed it
                    continue
                if any(need in waiting for need in step.needs) or not pool.room(step):
                    continue
                if _late(step, begun, end(step)):
                    del waiting[step.key]
                    yield Outcome(step, "left")
                    yield from _skipped(step, waiting)
                    continue
                running.add(step.key)
                pool.start(step, end(step))
            for outcome in pool.wait() if running else ():
                step = outcome.step
                running.discard(step.key)
                if outcome.ending == "lost":
                    tries[step.key] += 1
                    if tries[step.key] < TRIES:
                        continue
                    outcome = Outcome(
                        step,
                        "failed",
                        error=FailedError(
                            f"its process died {TRIES} times, often for lack of memory; run fewer at a time"
                        ),
                    )
                elif outcome.ending == "busy":
                    if _late(step, begun, end(step)):
                        outcome = Outcome(step, "left")
                    else:
                        time.sleep(RECHECK)
                        waiting[step.key] = waiting.pop(step.key)  # try the others first
                        continue
                del waiting[step.key]
                yield outcome
                if outcome.ending != "done":
                    yield from _skipped(step, waiting)
    finally:
        pool.close()


def _late(step: Step, begun: float, deadline: float | None) -> bool:
    if deadline is None:
        return False
    whole, left, asked = deadline - begun, deadline - time.time(), step.seconds() or 0.0
    return left <= 0 or left < (asked if asked <= whole else whole / 2)


def _skipped(step: Step, waiting: dict[str, Step]) -> Iterator[Outcome]:
    """Remove every step that needs this one, directly or not."""
    for other in [s for s in waiting.values() if step.key in s.needs]:
        if waiting.pop(other.key, None) is not None:
            yield Outcome(other, "skipped")
            yield from _skipped(other, waiting)
