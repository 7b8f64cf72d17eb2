"""Temporal smoothing (VQ-BNN, Park 2021; SS Eq. 3, §1.1, A.2): a stream's recent predictions as an ensemble.

    p(y | x_t) = Σ_{i=0…w} π_i p(y | x_{t−i}),    π_i = d^i / Σ_j d^j,    w = 5, d = e^−0.8

The network runs once per frame, and its predictions for the w earlier frames are averaged in with importances π that
decay. We read "5 previous predictions" (A.2) as the current frame and the 5 before it; `window` sets the number. A
stream with fewer frames since its start or last cut averages those it has. A stream's memory is w + 1 predictions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.ensembles.ensemble import Ensemble, Network, checked, evaluating
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.inputs import copied
from calibrant.errors import InputError
from calibrant.functional.model_output import logits_of
from calibrant.functional.segmentation import classes_back
from calibrant.types import Predictions

WINDOW, DECAY = 5, math.exp(-0.8)
Space = Literal["probability", "log"]


def importances(count: int, decay: float) -> Tensor:
    """Return π_0 … π_{count−1}, the newest first: d^i / Σ_j d^j."""
    powers = torch.tensor([decay**i for i in range(count)], dtype=torch.float64)
    return powers / powers.sum()


def smoothed(log_p: Sequence[Tensor], decay: float, space: Space = "probability") -> Tensor:
    """Return the log of the average probability, from log-probabilities [..., K] with the newest first. In `log` space,
    the normalised mean of the log-probabilities."""
    pi = importances(len(log_p), decay).to(log_p[0].device)
    stacked = torch.stack(list(log_p))
    shape = (-1, *[1] * (stacked.ndim - 1))
    if space == "log":
        # an importance of 0 times the −∞ of an impossible class would be NaN
        kept = pi > 0
        return torch.log_softmax((stacked[kept] * pi[kept].reshape(shape)).sum(0), -1)
    return torch.logsumexp(stacked + pi.log().reshape(shape), 0)


@dataclass
class Memory:
    """What a stream remembers: its last predictions, the newest first, the number of its frames, and their shape."""

    kept: deque[Tensor]
    seen: int = 0
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class TemporalSmoothing(Ensemble):
    """The average of a stream's recent predictions, one pass per frame; for classes and for pixels.

    `predictor` is a network, an ensemble or any callable that returns logits. With an ensemble, frame t uses member
    t mod M alone (`rotate`), which is how VQ-BNN replaces MC dropout; `rotate=False` uses the pooled prediction.
    A stream is forgotten when the mean total variation between successive predictions exceeds `scene_cut`.
    `class_axis` is the same as in calls, set once for all of them.
    """

    predictor: Any
    window: int = WINDOW
    decay: float = DECAY
    space: Space = "probability"
    rotate: bool = True
    scene_cut: float | None = None
    class_axis: int | None = None
    memories: dict[Hashable, Memory] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.predictor):
            raise InputError(f"{type(self.predictor).__name__} is not a predictor: it cannot be called on a frame")
        if isinstance(self.window, bool) or not isinstance(self.window, Integral) or self.window < 0:
            raise InputError(f"window={self.window!r} must be a whole number of earlier frames, 0 or more")
        if not (_is_number(self.decay) and 0 <= self.decay <= 1):
            raise InputError(f"decay={one_line(self.decay)} must be one number in [0, 1]; SS uses exp(-0.8) = 0.449")
        if self.space not in ("probability", "log"):
            raise InputError(f"space={self.space!r} is unknown; use probability or log")
        if self.scene_cut is not None and not (_is_number(self.scene_cut) and 0 < self.scene_cut <= 1):
            given = one_line(self.scene_cut)
            raise InputError(f"scene_cut={given} must be one number in (0, 1], a total-variation distance")

    @classmethod
    def build(cls, given: Ingredients) -> TemporalSmoothing:
        return cls(given.network("temporal"))

    @torch.no_grad()
    def __call__(  # type: ignore[override]  # frames are one tensor and belong to streams
        self, x: Tensor, stream: Any = None, cut: Any = None, *, class_axis: int | None = None
    ) -> Tensor:
        """Return the smoothed log-probabilities of the frames x[0], x[1], …, in this order.

        `stream` is one id for all frames (a string or a whole number), or one id per frame in a list, tuple, array or
        tensor as long as x. So ("cam", 1) gives the ids of two frames, not one id. A stream is remembered until
        `reset`. Frames without an id belong to one further stream, which continues from call to call.
        `cut` is true where a new scene begins. A single value holds for the first frame of each stream.
        """
        if not isinstance(x, Tensor):
            raise InputError(f"frames are a tensor [N, …], not {type(x).__name__}; give torch.as_tensor(frames)")
        streams: list[Hashable] = [None] * len(x)
        if stream is not None:
            streams = [stream_id(s) for s in per_frame(stream, len(x), "stream")]
        cuts = [is_cut(c) for c in per_frame(cut, len(x), "cut")]
        if cut is not None and np.ndim(cut) == 0:  # one value for the call: the first frame of each stream
            first = {s: i for i, s in reversed(list(enumerate(streams)))}
            cuts = [c and first[s] == i for i, (s, c) in enumerate(zip(streams, cuts, strict=True))]
        return self._with_axis(class_axis)._smooth(x, streams, cuts, self.memories)

    def restarted(self) -> TemporalSmoothing:
        """Return the same predictor without any memory."""
        return replace(self, memories={})

    def reset(self, stream: Hashable | None = None) -> None:
        """Forget one stream, or all streams."""
        if stream is None:
            self.memories.clear()
        else:
            self.memories.pop(stream_id(stream), None)

    def _with_axis(self, class_axis: int | None) -> TemporalSmoothing:
        """Return the same predictor, with the same memories, for networks whose classes are at `class_axis`."""
        return self if class_axis is None else replace(self, class_axis=class_axis)

    def axis(self, class_axis: int | None = None) -> int | None:
        return super().axis(self.class_axis if class_axis is None else class_axis)

    def _smooth(
        self, x: Tensor, streams: Sequence[Hashable], cuts: Sequence[bool], memories: dict[Hashable, Memory]
    ) -> Tensor:
        def check(what: str, shape: Sequence[int], held: Callable[[Memory], Sequence[int]]) -> None:
            """Refuse another shape than the one that a stream remembers, unless a new scene begins."""
            for stream in dict.fromkeys(streams):
                memory = memories.get(stream)
                if memory and memory.kept and held(memory) != shape and not cuts[streams.index(stream)]:
                    raise InputError(
                        f"{stream_name(stream)}: {what} of shape {tuple(shape)} after {tuple(held(memory))}; resize "
                        "the frames, reset the stream, or pass cut=True"
                    )

        check("a frame", x.shape[1:], lambda memory: memory.shape)
        seen = {stream: memories[stream].seen if stream in memories else 0 for stream in streams}
        turns: list[int] = []  # number of each frame in its stream
        for stream in streams:
            turns.append(seen[stream])
            seen[stream] += 1
        predicted = self._log_p(x, turns)  # before anything is remembered, so that an error leaves streams unchanged
        if math.isnan(float(predicted.sum())):  # no log-probability is positive, so only NaN can make the sum NaN
            at = int(predicted.isnan().flatten(1).any(1).nonzero()[0])
            raise InputError(
                f"{stream_name(streams[at])}: frame {at} of this call has NaN logits; repair or drop the frame"
            )
        check("logits", predicted.shape[1:], lambda memory: memory.kept[0].shape)
        out = [predicted[:0]]
        for log_p, stream, cut in zip(predicted, streams, cuts, strict=True):
            memory = memories.setdefault(stream, Memory(deque(maxlen=int(self.window) + 1)))
            memory.shape = x.shape[1:]
            # cloned, because a view would keep its whole batch in memory
            out.append(self._step(memory, log_p.clone() if len(predicted) > 1 else log_p, cut)[None])
        return classes_back(torch.cat(out), self.axis())

    def _step(self, memory: Memory, log_p: Tensor, cut: bool) -> Tensor:
        kept, limit = memory.kept, self.scene_cut
        if cut or (kept and limit is not None and _distance(kept[0], log_p) > limit):
            kept.clear()
        kept.appendleft(log_p)
        memory.seen += 1
        return smoothed(list(kept), self.decay, self.space)

    def _log_p(self, x: Tensor, turns: Sequence[int]) -> Tensor:
        """Return the predictor's own log-probabilities of each frame, classes last."""
        axis, x = self.axis(), copied(x)
        if isinstance(self.predictor, Ensemble) and self.rotate:
            each = []
            for frame, turn in zip(x, turns, strict=True):
                with self.predictor.member(turn % self.predictor.size) as network:
                    each.append(checked(network(frame[None]), 1, axis))
            return torch.log_softmax(torch.cat(each).double(), -1)
        scope: AbstractContextManager[Callable[..., Any]] = nullcontext(self.predictor)
        if isinstance(self.predictor, nn.Module):
            scope = evaluating(self.predictor)
        elif isinstance(self.predictor, Ensemble):
            scope = nullcontext(partial(self.predictor, class_axis=axis))
        with scope as network:
            return torch.log_softmax(checked(network(x), len(x), axis).double(), -1)

    @property
    def model(self) -> Any:
        """The network inside, which tells `home` the device."""
        models = getattr(self.predictor, "models", None)
        return models[0] if models else getattr(self.predictor, "model", self.predictor)

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        """Yield the predictor for one stream that begins with its first call."""
        memories: dict[Hashable, Memory] = {}
        if self.window == 0 and isinstance(self.predictor, nn.Module):
            # without smoothing, return the network's own logits
            with evaluating(self.predictor) as network:
                yield network
            return
        yield torch.no_grad()(lambda x: self._smooth(x, [None] * len(x), [False] * len(x), memories))

    def predict(self, loader: Iterable[Any], *, class_axis: int | None = None, **options: Any) -> Predictions:
        """Predict as every ensemble does; the loader's items are one stream, in its order."""
        found = super(TemporalSmoothing, self._with_axis(class_axis)).predict(loader, **options)
        return replace(found, raw=found.raw and self.window == 0)

    @torch.no_grad()
    def members(self, x: Tensor, *, class_axis: int | None = None) -> Tensor:  # type: ignore[override]
        """Return [1, N, K]: the predictions of x[0], x[1], … as a stream of their own."""
        with self._with_axis(class_axis).member(0) as network:
            return logits_of(network(x))[None]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the mean over points of the total variation ½ Σ_k |p_k − q_k| of two predictions."""
    return float((a.exp() - b.exp()).abs().sum(-1).mean() / 2)


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
