"""Run steps on a Ray cluster: one task per step, with one processor and, if the step wants it, a share of a GPU.

All nodes must see the folders of results and runs under the same path. The node that runs a step writes its output;
only the outcome travels. When a worker or a node dies, its step is lost, and is started again elsewhere.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.errors import FailedError, InputError, MissingDependencyError
from calibrant.executors.step import Outcome, Step, attempt

LOCAL = "local"
SECONDS = 10
"""How long to wait for a cluster to answer."""


class RayCluster:
    """A cluster at `address`, or a new one on this machine (`local`). Each GPU runs `share` steps at a time."""

    def __init__(self, address: str = LOCAL, share: int = 1) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError("--ray needs Ray; install it with `pip install 'calibrant[ray]'`") from error
        self._ray: Any = ray
        self._connected_here = not ray.is_initialized()
        try:
            _check_reachable(address)
            quiet: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False} if address == LOCAL else {}
            ray.init(None if address == LOCAL else address, ignore_reinit_error=True, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            first = str(error).splitlines()[0]
            remedy = "start one, or use --ray local"
            raise InputError(f"--ray {address}: no Ray cluster answers there ({first}); {remedy}") from error
        self._share = share
        self._running: dict[Any, Step] = {}

    def _needs(self, step: Step) -> dict[str, float]:
        gpus = float(self._ray.cluster_resources().get("GPU", 0.0))
        return {"CPU": 1.0, "GPU": 1 / self._share if step.gpu and gpus else 0.0}

    def room(self, step: Step) -> bool:
        """Whether the cluster has room for one more step now; it may grow and shrink."""
        total, needs = self._ray.cluster_resources(), self._needs(step)
        taken = [self._needs(other) for other in self._running.values()]
        free = {kind: total.get(kind, 0.0) - sum(each[kind] for each in taken) for kind in needs}
        return not taken or all(needs[kind] <= free[kind] for kind in needs if needs[kind])

    def start(self, step: Step, deadline: float | None) -> None:
        needs = self._needs(step)
        options = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"], "max_retries": 0}
        self._running[self._ray.remote(**options)(attempt).remote(step, deadline)] = step

    def wait(self) -> Sequence[Outcome]:
        ready, _ = self._ray.wait(list(self._running), num_returns=1)
        out = []
        for reference in ready:
            step = self._running.pop(reference)
            try:
                out.append(self._ray.get(reference))
            except self._ray.exceptions.RayError:  # the worker or the node has died
                out.append(Outcome(step, "lost"))
        return out

    def submit(self, function: Callable[..., Any], *given: Any) -> Submitted:
        """Call a function on one processor of the cluster; Ray calls it again if the process or the node dies."""
        return Submitted(self._ray, self._ray.remote(num_cpus=1)(function).remote(*given))

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        if self._connected_here:  # otherwise the connection belongs to the calling program
            self._ray.shutdown()


@dataclass(frozen=True)
class Submitted:
    """A call on the cluster."""

    ray: Any
    reference: Any

    def result(self) -> Any:
        """Wait for the result; raise the error that the function raised."""
        try:
            return self.ray.get(self.reference)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self.ray.exceptions.RayError as error:
            raise FailedError(f"the cluster lost a process: {str(error).splitlines()[0]}") from error


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing answers at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
