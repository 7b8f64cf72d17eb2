"""Streams of frames: the id of each frame's stream, where new scenes begin, and what a stream remembers."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from torch import Tensor

from calibrant.errors import InputError


@dataclass
class Memory:
    """What a stream remembers: its last predictions, the shape of its frames, and the number of frames seen."""

    kept: deque[Tensor]
    frame: tuple[int, ...] = ()
    seen: int = 0

    def check(self, frame: Sequence[int], stream: Hashable, *, cut: bool) -> None:
        """Refuse a frame of another shape, unless a new scene begins."""
        shape = tuple(frame)
        if self.kept and shape != self.frame and not cut:
            what = f"frame {self.seen} has shape {shape} after frames of {self.frame}"
            named = "give it another stream id, or reset the stream"
            others = "leave it out, or give it a stream id" if stream is None else named
            raise InputError(f"{stream_name(stream)}: {what}; resize it, {others}")


def stream_name(stream: Hashable | None) -> str:
    """Return how messages call a stream. None is the stream of frames without an id: one camera needs none."""
    return "the stream" if stream is None else f"stream {stream!r}"


def one_line(value: Any) -> str:
    """Return the repr of a value without line breaks."""
    return " ".join(repr(value).split())


def stream_id(given: Any) -> str | int:
    """Return a stream's id as a string or a Python integer."""
    if isinstance(given, (Tensor, np.generic, np.ndarray)):
        given = given.tolist()
    if isinstance(given, str):
        return given
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise InputError(f"stream={one_line(given)} cannot be an id; use a string or a whole number, such as 'cam 1'")
    return int(given)


def per_frame(given: Any, n: int, name: str) -> list[Any]:
    """Return one entry per frame; a single value holds for all frames."""
    if isinstance(given, (Tensor, np.ndarray)):
        given = given.tolist()
    if not isinstance(given, (list, tuple)):
        return [given] * n
    if len(given) != n:
        one = "a list or tuple is one id per frame; one id for all is a string or a whole number, such as 'cam 1'"
        remedy = one if name == "stream" else "give one for all or one per frame"
        raise InputError(f"{len(given)} entries of {name} for {n} frame{'s' * (n != 1)}; {remedy}")
    return list(given)


def is_cut(given: Any) -> bool:
    """Return whether a new scene begins. Anything but a truth value is an error, because "no" would count as true."""
    if isinstance(given, (Tensor, np.generic, np.ndarray)):
        given = given.tolist()
    if given is None or isinstance(given, bool) or (isinstance(given, Integral) and given in (0, 1)):
        return bool(given)
    raise InputError(f"cut={one_line(given)} must be true or false, one for all or one per frame")
