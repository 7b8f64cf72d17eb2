"""What benchmarks share: sides timed in turns, options from their defaults, tables in Markdown."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import torch

Call = Callable[[], Any]


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """The options of a script, `--name` for each default and of its type; its docstring is its help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        how: dict[str, Any] = {"default": default, "help": f"default: {default}"}
        if default is False:
            how = {"action": "store_true"}
        elif isinstance(default, list):
            how |= {"nargs": "*", "type": type(default[0])}
        elif default is not None:
            how["type"] = type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    return parser.parse_args()


def timed(call: Call, device: str = "cpu", clock: Callable[[], float] | None = None) -> tuple[Any, float]:
    """What a call returns, and its seconds: on a CPU of the processor, which others on the machine do not lengthen; on
    CUDA until the device is done."""
    clock = clock or (time.perf_counter if device == "cuda" else time.process_time)
    wait(device)
    start = clock()
    out = call()
    wait(device)
    return out, max(clock() - start, 1e-9)


def seconds(call: Call, device: str = "cpu", clock: Callable[[], float] | None = None) -> float:
    return timed(call, device, clock)[1]


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def in_turns(calls: Sequence[Call], rounds: int, device: str = "cpu", **how: Any) -> list[list[float]]:
    """The seconds of each in every round, after one that warms up: a busy machine slows all of them alike."""
    for call in calls:
        call()
    found = [[seconds(call, device, **how) for call in calls] for _ in range(rounds)]
    return [list(side) for side in zip(*found, strict=True)]


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return median(a / b for a, b in zip(over, under, strict=True))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], right: str = "") -> str:
    """Markdown; `right` has a letter r for each column that is aligned to the right."""
    rule = ["---:" if side == "r" else "---" for side in right.ljust(len(head))]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, rule, *rows))
