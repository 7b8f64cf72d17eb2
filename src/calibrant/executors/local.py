"""Run steps in this process, or in several persistent processes on one machine.

The processes persist so that each loads data, compiles code and opens the device only once. With an accelerator, some
processes run the steps that want it and the others run the rest: intervals are resampled while the next network
trains. A process that dies, or whose step failed, is replaced. A process whose parent dies ends itself. On CUDA the
processes share the device through NVIDIA's Multi-Process Service where it is available (`mps`).
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from calibrant.errors import escaped
from calibrant.executors import mps
from calibrant.executors.step import Outcome, Step, attempt

PATIENCE = 10
"""Seconds that an idle process gets to end by itself."""


class InProcess:
    """Run one step after the other, in this process."""

    def __init__(self) -> None:
        self._next: tuple[Step, float | None] | None = None

    def room(self, step: Step) -> bool:
        return self._next is None

    def start(self, step: Step, deadline: float | None) -> None:
        self._next = step, deadline

    def wait(self) -> Sequence[Outcome]:
        assert self._next is not None
        step, deadline = self._next
        self._next = None
        return [attempt(step, deadline)]

    def close(self) -> None:
        pass


class LocalProcesses:
    """`count` processes, and `cpu_only` more for the steps that do not want the accelerator.

    The processes share the processors. `cuda` says that they share one GPU.
    """

    def __init__(self, count: int, cpu_only: int = 0, cuda: bool = False) -> None:
        self._shared, self._cuda, self._environment = ExitStack(), cuda, dict[str, str]()
        self._context = _context()
        self._threads = max(1, (os.cpu_count() or 1) // (count + cpu_only))
        self._separate = cpu_only > 0
        self._workers = [self._worker(gpu=True) for _ in range(count)]
        self._workers += [self._worker(gpu=False) for _ in range(cpu_only)]

    def _worker(self, *, gpu: bool) -> _Worker:
        return _Worker(self._context, self._threads, self._environment, gpu=gpu)

    def room(self, step: Step) -> bool:
        return self._free(step) is not None

    def _free(self, step: Step) -> _Worker | None:
        fitting = (w for w in self._workers if w.step is None and (not self._separate or w.gpu == step.gpu))
        return next(fitting, None)

    def start(self, step: Step, deadline: float | None) -> None:
        if self._cuda and step.gpu:  # once, before the first process opens the device
            self._cuda = False
            self._environment |= self._shared.enter_context(mps.daemon())
        worker = self._free(step)
        assert worker is not None
        worker.begin(step, deadline)

    def wait(self) -> Sequence[Outcome]:
        busy = {w.connection: w for w in self._workers if w.step is not None}
        out = []
        for ready in wait(list(busy)):
            worker = busy[ready]  # type: ignore[index]
            step = worker.step
            assert step is not None
            try:
                outcome = worker.connection.recv()
            except (EOFError, OSError):
                outcome = Outcome(step, "lost")
            worker.step = None
            if outcome.ending in ("lost", "failed"):  # the process has ended, or is about to
                worker.end()
                self._workers[self._workers.index(worker)] = self._worker(gpu=worker.gpu)
            out.append(outcome)
        return out

    def close(self) -> None:
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.end()
        self._shared.close()


def _context() -> Any:
    """How processes start. On Linux they are forked from a server that has imported torch, which takes seconds.

    Importing torch does not open the device, so each copy can make its own context.
    """
    if sys.platform != "linux":
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    return context


class _Worker:
    """A process at the other end of a pipe. It starts with its first step, in the environment known by then."""

    def __init__(self, context: Any, threads: int, environment: Mapping[str, str], *, gpu: bool) -> None:
        self.gpu = gpu
        self.step: Step | None = None
        self._context, self._threads, self._environment = context, threads, environment
        self._process: Any = None
        self.connection: Connection = None  # type: ignore[assignment]

    def begin(self, step: Step, deadline: float | None) -> None:
        if self._process is None:
            self.connection, theirs = self._context.Pipe()
            given = (theirs, self._threads, dict(self._environment))
            self._process = self._context.Process(target=_serve, args=given, daemon=False)
            self._process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
        self.step = step
        with suppress(OSError):  # the process has died since its last step; `wait` will notice
            self.connection.send((step, deadline))

    def hang_up(self) -> None:
        """Close the pipe, so that an idle process ends by itself."""
        if self._process is not None:
            self.connection.close()

    def end(self) -> None:
        """End the process; kill it only if it is busy or does not end by itself, because killing one that works on a
        shared device can fail the work of the others."""
        if self._process is not None:
            self.hang_up()
            if self.step is None:
                self._process.join(PATIENCE)
            self._process.terminate()
            self._process.join()
            self._process = None


def _show_in_one_line(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning without its place in the code, as the command itself does."""
    print(escaped(f"note: {message}"), file=sys.stderr, flush=True)


def _serve(connection: Connection, threads: int, environment: Mapping[str, str]) -> None:
    """Run steps from the pipe, one after the other, until the pipe is closed or the parent dies."""
    parent = mp.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and ends its processes
    os.environ.update(environment)
    warnings.showwarning = _show_in_one_line
    import torch

    torch.set_num_threads(threads)
    while True:
        try:
            step, deadline = connection.recv()
        except EOFError:
            return
        outcome = attempt(step, deadline)
        connection.send(outcome)
        if outcome.ending == "failed":  # the device's context may be broken
            return
        del step, outcome
        gc.collect()  # networks and captured graphs have reference cycles, which hold device memory
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
