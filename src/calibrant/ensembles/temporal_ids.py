"""What a call of a stream comes with: the id of each frame's stream, and where a new scene begins."""

from __future__ import annotations

from collections.abc import Hashable
from numbers import Integral
from typing import Any

import numpy as np
from torch import Tensor

from calibrant.errors import InputError


def called(stream: Hashable | None) -> str:
    """For messages. None is the stream of frames that come without an id: with one camera, none is needed."""
    return "the stream" if stream is None else f"stream {stream!r}"


def shown(value: Any) -> str:
    """In one line."""
    return " ".join(repr(value).split())


def id_of(given: Any) -> str | int:
    """A stream's id; numbers of NumPy and torch are the plain ones."""
    if isinstance(given, (Tensor, np.generic, np.ndarray)):
        given = given.tolist()
    if isinstance(given, str):
        return given
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise InputError(f"stream={shown(given)} cannot be an id; use a string or a whole number, such as 'cam 1'")
    return int(given)


def each_frame(given: Any, n: int, name: str) -> list[Any]:
    """One entry per frame, from one for all or one for each."""
    if isinstance(given, (Tensor, np.ndarray)):
        given = given.tolist()
    if not isinstance(given, (list, tuple)):
        return [given] * n
    if len(given) != n:
        one = "a list or tuple is one id per frame; one id for all is a string or a whole number, such as 'cam 1'"
        remedy = one if name == "stream" else "give one for all or one per frame"
        raise InputError(f"{len(given)} entries of {name} for {n} frame{'s' * (n != 1)}; {remedy}")
    return list(given)


def cut_of(given: Any) -> bool:
    """Whether a new scene begins; "no" would pass for true."""
    if isinstance(given, (Tensor, np.generic, np.ndarray)):
        given = given.tolist()
    if given is None or isinstance(given, bool) or (isinstance(given, Integral) and given in (0, 1)):
        return bool(given)
    raise InputError(f"cut={shown(given)} must be true or false, one for all or one per frame")
