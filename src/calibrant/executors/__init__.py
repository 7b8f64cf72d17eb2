"""Where work runs: in this process, in several local processes, or on a cluster, behind one protocol.

    for outcome in execute(steps, LocalProcesses(4), deadline=…): …

A `Step` says what it needs, whether it is done, and runs itself; what it makes is written once, atomically, so that any
executor may run it, and a killed one is run again. A small result may travel with the
outcome instead. A `Pool` starts steps and says how they ended: `InProcess`, `LocalProcesses` on one machine,
`cluster.RayCluster` on many.
"""

from __future__ import annotations

from calibrant.errors import suggest_names
from calibrant.executors.local import InProcess, LocalProcesses
from calibrant.executors.schedule import execute
from calibrant.executors.step import Outcome, OutOfTime, Pool, Step

__all__ = ["InProcess", "LocalProcesses", "OutOfTime", "Outcome", "Pool", "Step", "execute"]

suggest_names(__name__)
