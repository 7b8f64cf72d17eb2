"""The base class of all ensembles: a subclass writes `member(j)`, which yields a callable network.

Members are pooled in log space one after the other, log (1/M) Σ_m softmax(z_m), so that fifty members of a thousand
classes need the memory of two. Over a whole data set, members are the outer loop: each is made once, not once per
batch.

Networks may label pixels. `checked` moves the classes of a member's output to the last axis, so that all later code
pools over classes; a call moves them back.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from calibrant.display import Rows, Shown
from calibrant.ensembles.inputs import Inputs, copied
from calibrant.errors import CalibrantError, InputError
from calibrant.functional.model_output import both_classes, logits_of
from calibrant.functional.segmentation import classes_back, classes_last
from calibrant.nn.evaluation import device_of, evaluation
from calibrant.types import Predictions, Split

if TYPE_CHECKING:
    from calibrant.ensembles.ingredients import Ingredients

Network = Callable[..., Any]
T = TypeVar("T")

TOGETHER = 2**24
"""The most numbers for which pooling several members at once is faster; beyond, it only costs memory."""


class Ensemble(Shown):
    """Several networks, or one network that changes from member to member (then a subclass writes `size` and `member`).

    Calling an ensemble returns pooled logits [N, K]; `members(x)` returns [M, N, K].

    `class_axis` is the axis of classes in the networks' outputs, in calls and in `predict`. By default it is the last
    of two axes, and axis 1 of four or more ([N, K, H, W]). With three axes it must be given, because it could be
    either. A network may state its own in an attribute `class_axis`, as calibrant's U-Net does. A call returns the
    layout of the network: [N, K, H, W], and [M, N, K, H, W] from `members`. `predict` returns pixels as items: [N·H·W,
    K].
    """

    options: ClassVar[tuple[str, ...]] = ()
    """The options of the command line that this ensemble has; the others are refused."""

    @property
    def size(self) -> int:
        return len(self.networks)

    def member(self, j: int) -> AbstractContextManager[Network]:
        """Yield the j-th network, valid inside the `with`. The model is restored afterwards.

        It is a plain callable and not the module, so that nobody can switch its mode.
        """
        return evaluating(self.networks[j])

    @classmethod
    def build(cls, given: Ingredients) -> Ensemble:
        """Build the ensemble from what the command line provides."""
        raise InputError(f"{cls.__name__} cannot be built by name: its class has no method `build`; make it in Python")

    def _shown(self) -> tuple[str, Rows]:
        kinds = ", ".join(dict.fromkeys(type(network).__name__ for network in self.networks))
        return f"{type(self).__name__} of {self.size} network{'s' * (self.size != 1)} ({kinds})", []

    @property
    def networks(self) -> Sequence[Any]:
        """The networks inside."""
        return getattr(self, "models", None) or [getattr(self, "model", None)]

    def axis(self, class_axis: int | None = None) -> int | None:
        """Return the given axis, or that of the first network's attribute; None: the number of axes decides."""
        return getattr(self.networks[0], "class_axis", None) if class_axis is None else class_axis

    @property
    def home(self) -> torch.device:
        """The device of the networks, where their input must be."""
        return device_of(self.networks)

    @torch.no_grad()
    def members(self, *inputs: Any, class_axis: int | None = None, **named: Any) -> Tensor:
        """Return the logits of every member on one batch: [M, N, K]. The arguments are passed to the networks."""
        axis = self.axis(class_axis)
        with closing(self.blocks((inputs, named), axis)) as blocks:
            return torch.stack([classes_back(logits, axis) for block in blocks for logits in block])

    @torch.no_grad()
    def __call__(self, *inputs: Any, class_axis: int | None = None, **named: Any) -> Tensor:
        axis, pooled = self.axis(class_axis), LogMean()
        with closing(self.blocks((inputs, named), axis)) as blocks:
            for block in blocks:
                pooled.extend(block)
        return classes_back(pooled.value(), axis)

    def blocks(self, inputs: Inputs, axis: int | None) -> Generator[Tensor, None, None]:
        """Yield the members' logits on one batch, one or several members at a time: [G, N, …], classes last."""
        items = items_in(inputs)
        for j in range(self.size):
            args, kwargs = copied(inputs)
            with self.member(j) as network:
                logits = checked(network(*args, **kwargs), items, axis)
            if j == 0:
                shape = logits.shape
            elif logits.shape != shape:
                raise InputError(_disagree(j, logits.shape[-1], shape[-1]))
            yield logits[None]

    @torch.no_grad()
    def over(
        self,
        batches: Iterable[Tensor] | Iterable[tuple[Inputs, Sequence[int]]],
        scope: AbstractContextManager[Any] | None = None,
        class_axis: int | None = None,
    ) -> Iterator[Tensor]:
        """Yield each member's logits [N, K] over all batches. A batch is a tensor, or (inputs, shape of the labels).

        Pixels are items: [N·H·W, K]. `batches` is iterated M times.
        """
        axis = self.axis(class_axis)
        for j in range(self.size):
            out = []
            with self.member(j) as network, scope or nullcontext():
                for batch in batches:
                    inputs, items = (((batch,), {}), len(batch)) if isinstance(batch, Tensor) else batch
                    args, kwargs = copied(inputs)
                    logits = checked(network(*args, **kwargs), items, axis)
                    out.append(logits.reshape(-1, logits.shape[-1]))
            yield torch.cat(out)  # outside the `with`, so that the model is restored even if the caller stops here

    def predict(
        self,
        loader: Iterable[Any],
        *,
        device: torch.device | str | None = None,
        keep_members: bool = False,
        split: Split | str = Split.UNKNOWN,
        classes: Sequence[Any] | None = None,
        class_axis: int | None = None,
        ignore_index: int | None = None,
        progress: bool = False,
    ) -> Predictions:
        """Predict the whole loader, member after member: pooled [N, K], or [M, N, K] with `keep_members`."""
        from calibrant.ensembles.prediction import predict  # which imports this file

        options: dict[str, Any] = {"split": split, "classes": classes, "ignore_index": ignore_index}
        options["class_axis"] = self.axis(class_axis)
        place = device if device is not None else self.home
        kept: list[Tensor] = []
        pooled, last = LogMean(), None
        for j in with_progress(range(self.size), f"{type(self).__name__.lower()} members", show=progress):
            with self.member(j) as network:
                try:
                    now = predict(network, loader, device=place, **options)
                except CalibrantError as error:
                    if j == 0:
                        raise
                    raise type(error)(f"member {j}: {error}") from error  # member 0 could read the data
            if last is not None and now.k != last.k:
                raise InputError(_disagree(j, now.k, last.k))
            last = now
            assert last.logits is not None
            if keep_members:
                kept.append(last.logits)
            else:
                pooled.add(last.logits)
        assert last is not None
        logits = torch.stack(kept) if keep_members else pooled.value()
        return replace(last, logits=logits, raw=keep_members)


def items_in(inputs: Inputs) -> int:
    """Return the number of items of a batch: the length of a list (of texts, or of images of several sizes) that comes
    first, else that of the first tensor."""
    first = next(iter((*inputs[0], *inputs[1].values())), ())
    if isinstance(first, Sized) and not isinstance(first, (Tensor, tuple, Mapping)):
        return len(first)
    return next((len(t) for t in tree_leaves(inputs) if isinstance(t, Tensor) and t.ndim), 0)


def _disagree(j: int, k: int | None, first: int | None) -> str:
    return f"member {j} has {k} classes and member 0 has {first}; the members must agree on the classes"


def positive(name: str, value: object) -> int:
    """Return a setting that counts something, or raise an error that names it."""
    if not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name}={value!r} must be a whole number, at least 1")
    return int(value)


class LogMean:
    """The log of the mean probability over the members added so far, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: Tensor | None = None

    def add(self, logits: Tensor) -> None:
        log_p = torch.log_softmax(logits.double(), -1)
        self.sum = log_p if self.sum is None else torch.logaddexp(self.sum, log_p)
        self.count += 1

    def extend(self, logits: Tensor) -> None:
        """Add several members at once, [M, N, K], because many small operations are slow on a GPU."""
        if len(logits) == 1 or logits.numel() > TOGETHER:
            for member in logits:
                self.add(member)
            return
        log_p = torch.log_softmax(logits.double(), -1).logsumexp(0)
        self.sum = log_p if self.sum is None else torch.logaddexp(self.sum, log_p)
        self.count += len(logits)

    def value(self) -> Tensor:
        assert self.sum is not None, "no member was added"
        return self.sum - math.log(self.count)


def checked(output: Any, items: int | Sequence[int], class_axis: int | None = None) -> Tensor:
    """Return a network's output as logits [N, K] (or [N, H, W, K] for pixels); another shape is an error.

    `items` is the number of inputs, or the shape of their labels.
    """
    raw = logits_of(output)
    logits = both_classes(classes_last(raw, class_axis, "the model's output"))
    due = (items, *logits.shape[1:-1]) if isinstance(items, int) else tuple(items)
    if logits.shape[:-1] != due or logits.shape[-1] < 2:
        maps = not isinstance(items, int) and len(items) > 1
        of = f"labels of shape {due}" if maps else f"{due[0]} items"
        expected = "[N, K], of maps [N, K, H, W]," if maps else "[N, K]"
        raise InputError(f"the model returned shape {tuple(raw.shape)} for {of}; expected {expected} with K ≥ 2")
    return logits


def module(model: Any) -> nn.Module:
    """Return the model, or raise an error if it is not a torch.nn.Module."""
    if not isinstance(model, nn.Module):
        raise InputError(f"{type(model).__name__} is not a torch.nn.Module; pass the network itself")
    return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[Network]:
    """Yield the network as a plain callable, in eval mode."""
    with evaluation(model):
        yield lambda *args, **kwargs: model(*args, **kwargs)


def with_progress(items: Iterable[T], title: str, *, show: bool) -> Iterable[T]:
    """Return the items, with a progress bar on stderr if `show`."""
    if not show:
        return items
    from rich.console import Console
    from rich.progress import track

    total = len(items) if isinstance(items, Sized) else None
    return track(items, title, total=total, console=Console(file=sys.stderr), transient=True)
