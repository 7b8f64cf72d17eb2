"""Temporal smoothing (VQ-BNN, Park 2021; SS Eq. 3, §1.1, A.2): a stream's recent predictions as an ensemble.

    p(y | x_t) = Σ_{i=0…w} π_i p(y | x_{t−i}),    π_i = d^i / Σ_j d^j,    w = 5, d = e^−0.8

The network runs once per frame. Its predictions for the w frames before are averaged in, with importances that decay.
"5 previous predictions" (A.2) reads as the current frame and the 5 before it; `window` sets it. A young stream, or one
after a cut, averages what it has. Memory is w + 1 predictions per stream, however long it runs.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from typing import Any, Literal, SupportsFloat

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.ensembles.ensemble import Ensemble, Network, checked, evaluating
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.temporal_ids import called, cut_of, each_frame, id_of, shown
from calibrant.errors import InputError
from calibrant.functional.model_output import logits_of
from calibrant.functional.segmentation import classes_back
from calibrant.types import Predictions

WINDOW, DECAY = 5, math.exp(-0.8)
Space = Literal["probability", "log"]


def importances(count: int, decay: float) -> Tensor:
    """π_0 … π_{count−1}, the newest first: d^i / Σ_j d^j."""
    powers = torch.tensor([decay**i for i in range(count)], dtype=torch.float64)
    return powers / powers.sum()


def smoothed(log_p: Sequence[Tensor], decay: float, space: Space = "probability") -> Tensor:
    """Log of the average of log-probabilities [..., K], newest first; in `log` space, their normalised mean."""
    pi = importances(len(log_p), decay).to(log_p[0].device)
    stacked = torch.stack(list(log_p))
    shape = (-1, *[1] * (stacked.ndim - 1))
    if space == "log":
        # an importance of 0 must not make 0 · −∞ of an impossible class
        kept = pi > 0
        return torch.log_softmax((stacked[kept] * pi[kept].reshape(shape)).sum(0), -1)
    return torch.logsumexp(stacked + pi.log().reshape(shape), 0)


@dataclass
class Memory:
    """What one stream remembers: its last predictions, the shape of its frames, how many frames it has seen."""

    kept: deque[Tensor]
    frame: tuple[int, ...] = ()
    seen: int = 0

    def check(self, frame: Sequence[int], stream: Hashable, *, cut: bool) -> None:
        shape = tuple(frame)
        if self.kept and shape != self.frame and not cut:
            what = f"frame {self.seen} has shape {shape} after frames of {self.frame}"
            named = "give it another stream id, or reset the stream"
            others = "leave it out, or give it a stream id" if stream is None else named
            raise InputError(f"{called(stream)}: {what}; resize it, {others}")


@dataclass(frozen=True, eq=False)
class TemporalSmoothing(Ensemble):
    """The average of a stream's recent predictions, one pass per frame; for classes and for pixels.

    `predictor` is a network, an ensemble or any callable that returns logits. Of an ensemble, frame t
    takes member t mod M alone (`rotate`), which is how VQ-BNN takes MC dropout's place; else its pooled prediction.
    `scene_cut`: forget when the mean total-variation distance between successive predictions exceeds this.
    `class_axis` is as in every ensemble, and may also be said here, once for all calls.
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
        if not 0 <= _number(self.decay) <= 1:
            raise InputError(f"decay={shown(self.decay)} must be one number in [0, 1]; SS uses exp(-0.8) = 0.449")
        if self.space not in ("probability", "log"):
            raise InputError(f"space={self.space!r} is unknown; use probability or log")
        if self.scene_cut is not None and not 0 < _number(self.scene_cut) <= 1:
            given = shown(self.scene_cut)
            raise InputError(f"scene_cut={given} must be one number in (0, 1], a total-variation distance")

    @classmethod
    def build(cls, given: Ingredients) -> TemporalSmoothing:
        return cls(given.network("temporal"))

    # -- one stream or many ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def __call__(  # type: ignore[override]  # frames are one tensor, and come with their streams
        self, x: Tensor, stream: Any = None, cut: Any = None, *, class_axis: int | None = None
    ) -> Tensor:
        """Smoothed log-probabilities of the frames x[0], x[1], …, in this order.

        `stream`: one id for all of them, a string or a whole number; or one id per frame, in a list, tuple, array or
        tensor as long as x: ("cam", 1) is the ids of two frames, not one id. What a stream said is remembered until
        `reset`. Without it they belong to a stream that has no id, and go on where its last call ended.
        `cut`: true where a new scene begins; one for all: at the first frame of each stream.
        """
        if not isinstance(x, Tensor):
            raise InputError(f"frames are a tensor [N, …], not {type(x).__name__}; give torch.as_tensor(frames)")
        streams: list[Hashable] = [None] * len(x)
        if stream is not None:
            streams = [id_of(s) for s in each_frame(stream, len(x), "stream")]
        cuts = [cut_of(c) for c in each_frame(cut, len(x), "cut")]
        if cut is not None and np.ndim(cut) == 0:  # of the whole call: at the first frame of each stream
            first = {s: i for i, s in reversed(list(enumerate(streams)))}
            cuts = [c and first[s] == i for i, (s, c) in enumerate(zip(streams, cuts, strict=True))]
        return self._told(class_axis)._smooth(x, streams, cuts, self.memories)

    def afresh(self) -> TemporalSmoothing:
        """The same with nothing remembered."""
        return replace(self, memories={})

    def reset(self, stream: Hashable | None = None) -> None:
        """Forget one stream, or all."""
        if stream is None:
            self.memories.clear()
        else:
            self.memories.pop(id_of(stream), None)

    def _told(self, class_axis: int | None) -> TemporalSmoothing:
        """The same, with the same memories, of a predictor whose classes are at `class_axis`."""
        return self if class_axis is None else replace(self, class_axis=class_axis)

    def axis(self, class_axis: int | None = None) -> int | None:
        return super().axis(self.class_axis if class_axis is None else class_axis)

    def _smooth(
        self, x: Tensor, streams: Sequence[Hashable], cuts: Sequence[bool], memories: dict[Hashable, Memory]
    ) -> Tensor:
        turns: list[int] = []
        here: Counter[Hashable] = Counter()
        for stream, cut in zip(streams, cuts, strict=True):
            memory = memories.get(stream) or Memory(self._empty())
            if not here[stream]:  # one tensor: the frames of a call have one shape, that of its first
                memory.check(x.shape[1:], stream, cut=cut)
            turns.append(memory.seen + here[stream])  # a stream's later frames come after its earlier ones
            here[stream] += 1
        said = self._log_p(x, turns)  # before anything is remembered: a frame that fails leaves its stream as it was
        if math.isnan(float(said.sum())):  # none is above 0, so that only NaN makes NaN
            at = int(said.isnan().flatten(1).any(1).nonzero()[0])
            who = called(streams[at])
            raise InputError(f"{who}: frame {at} of this call has NaN logits; repair or drop the frame")
        for stream in here:
            kept = memories[stream].kept if stream in memories else ()
            if kept and kept[0].shape != said.shape[1:] and not cuts[streams.index(stream)]:
                shapes = f"{tuple(said.shape[1:])} after {tuple(kept[0].shape)}"
                raise InputError(f"{called(stream)}: logits of shape {shapes}; reset the stream, or say cut")
        out = [said[:0]]
        for log_p, stream, cut in zip(said, streams, cuts, strict=True):
            memory = memories.setdefault(stream, Memory(self._empty()))
            # a frame is a view of its batch, which would stay in memory whole
            out.append(self._step(memory, log_p.clone() if len(said) > 1 else log_p, cut)[None])
            memory.frame = tuple(x.shape[1:])
        return classes_back(torch.cat(out), self.axis())

    def _empty(self) -> deque[Tensor]:
        return deque(maxlen=int(self.window) + 1)

    def _step(self, memory: Memory, log_p: Tensor, cut: bool) -> Tensor:
        kept = memory.kept
        if cut:
            kept.clear()
        if kept and self.scene_cut is not None and _distance(kept[0], log_p) > self.scene_cut:
            kept.clear()
        kept.appendleft(log_p)
        memory.seen += 1
        return smoothed(list(kept), self.decay, self.space)

    def _log_p(self, x: Tensor, turns: Sequence[int]) -> Tensor:
        """What the predictor itself says of each frame, classes last."""
        axis = self.axis()
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

    # -- as every ensemble -----------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The network inside, by which `home` finds the device."""
        models = getattr(self.predictor, "models", None)
        return models[0] if models else getattr(self.predictor, "model", self.predictor)

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        """Batch after batch of one stream, from a clean start."""
        memories: dict[Hashable, Memory] = {}
        if self.window == 0 and isinstance(self.predictor, nn.Module):
            # nothing to smooth: its own logits
            with evaluating(self.predictor) as network:
                yield network
            return
        yield torch.no_grad()(lambda x: self._smooth(x, [None] * len(x), [False] * len(x), memories))

    def predict(self, loader: Iterable[Any], *, class_axis: int | None = None, **options: Any) -> Predictions:
        """As for every ensemble; the loader's items are one stream, in its order."""
        found = super(TemporalSmoothing, self._told(class_axis)).predict(loader, **options)
        return replace(found, raw=found.raw and self.window == 0)

    @torch.no_grad()
    def members(self, x: Tensor, *, class_axis: int | None = None) -> Tensor:  # type: ignore[override]
        """[1, N, K]: the frames x[0], x[1], … as one stream of their own."""
        with self._told(class_axis).member(0) as network:
            return logits_of(network(x))[None]


def _number(value: Any) -> float:
    """The value as a float; NaN if it is not a single number."""
    try:
        return float(value) if isinstance(value, SupportsFloat) and not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, RuntimeError):  # a tensor or an array of several
        return math.nan


def _distance(a: Tensor, b: Tensor) -> float:
    """Mean over points of the total variation ½ Σ_k |p_k − q_k| of two predictions."""
    return float((a.exp() - b.exp()).abs().sum(-1).mean() / 2)
