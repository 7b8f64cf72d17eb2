"""Run steps in this process, in several local processes or on a cluster, behind one protocol.

    for outcome in execute(steps, LocalProcesses(4), deadline=…): …

A `Step` names the steps it needs, knows whether it is done, and runs itself. It writes its output once, atomically, so
any executor may run it, and a step that was killed is run again. A `Pool` starts steps
and reports how they ended: `InProcess`, `LocalProcesses` on one machine, `cluster.RayCluster` on many.
"""

from __future__ import annotations

from calibrant.errors import suggest_names
from calibrant.executors.local import InProcess, LocalProcesses
from calibrant.executors.schedule import execute
from calibrant.executors.step import Outcome, OutOfTime, Pool, Step

__all__ = ["InProcess", "LocalProcesses", "OutOfTime", "Outcome", "Pool", "Step", "execute"]

suggest_names(__name__)
