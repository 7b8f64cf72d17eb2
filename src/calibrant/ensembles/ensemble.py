"""What every ensemble shares: `member(j)` gives a callable network; the rest follows from it.

Members are pooled in log space as they stream, log (1/M) Σ_m softmax(z_m), so that fifty members of a
thousand classes need the memory of two. Over a whole data set members are the outer loop: each is
made once, not once a batch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from calibrant.ensembles.inputs import Untouched
from calibrant.ensembles.single import Inputs, predict
from calibrant.errors import CalibrantError, InputError
from calibrant.functional.output import logits_of
from calibrant.types import Predictions, Split

if TYPE_CHECKING:
    from calibrant.ensembles.ingredients import Ingredients

Network = Callable[..., Any]

TOGETHER = 2**24
"""Numbers beyond which pooling several members in one go gains nothing and costs memory."""


class Ensemble:
    """Abstract: a method writes `size` and `member`. Calling pools; `members(x)` is [M, N, K]."""

    @property
    def size(self) -> int:
        raise TypeError(f"{type(self).__name__} must define size")

    def member(self, j: int) -> AbstractContextManager[Network]:
        """The j-th network, valid inside the `with`; the model is as before afterwards.

        A plain callable, not the module: nobody may switch its mode while it is a member.
        """
        raise TypeError(f"{type(self).__name__} must define member")

    @classmethod
    def build(cls, given: Ingredients) -> Ensemble:
        """The ensemble from what the command line has at hand."""
        raise InputError(f"{cls.__name__} cannot be built by name: its class has no method `build`; make it in Python")

    @property
    def home(self) -> torch.device:
        """Where the networks are, and so where their input must be."""
        networks = getattr(self, "models", None) or [getattr(self, "model", None)]
        for network in networks:
            if isinstance(network, nn.Module):
                for parameter in network.parameters():
                    return parameter.device
        return torch.device("cpu")

    @torch.no_grad()
    def members(self, x: Tensor) -> Tensor:
        return torch.stack(list(self._each(x)))

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        pooled = LogMean()
        for logits in self._each(x):
            pooled.add(logits)
        return pooled.value()

    @torch.no_grad()
    def over(
        self,
        batches: Iterable[Tensor] | Iterable[tuple[Inputs, int]],
        scope: AbstractContextManager[Any] | None = None,
    ) -> Iterator[Tensor]:
        """Member after member, its logits [N, K] over all batches: tensors, or inputs and how many items they are.

        `batches` is iterated M times.
        """
        untouched = Untouched()
        for j in range(self.size):
            out = []
            with self.member(j) as network, scope or nullcontext():
                for batch in batches:
                    inputs, n = (((batch,), {}), len(batch)) if isinstance(batch, Tensor) else batch
                    with untouched(inputs):
                        out.append(checked(network(*inputs[0], **inputs[1]), n, pixels=False))
            yield torch.cat(out)  # out here: whoever takes it may be interrupted, and the model must be as before then

    def predict(
        self,
        loader: Iterable[Any],
        *,
        device: torch.device | str | None = None,
        keep_members: bool = False,
        split: Split | str = Split.UNKNOWN,
        classes: Sequence[Any] | None = None,
        ignore_index: int | None = None,
        progress: bool = False,
    ) -> Predictions:
        """The whole loader, member after member: pooled [N, K], or [M, N, K] with `keep_members`."""
        place = device if device is not None else self.home
        kept: list[Tensor] = []
        pooled, last = LogMean(), None
        for j in steps(range(self.size), f"{type(self).__name__.lower()} members", show=progress):
            with self.member(j) as network:
                try:
                    now = predict(
                        network, loader, device=place, split=split, classes=classes, ignore_index=ignore_index
                    )
                except CalibrantError as error:
                    if j == 0:
                        raise
                    raise type(error)(f"member {j}: {error}") from error  # the data is not at fault: 0 could read it
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

    def _each(self, x: Tensor) -> Iterator[Tensor]:
        """Member after member, its logits of one batch."""
        untouched = Untouched()
        for j in range(self.size):
            with self.member(j) as network, untouched(x):
                logits = checked(network(x), len(x))
            if j == 0:
                shape = logits.shape
            elif logits.shape != shape:
                raise InputError(_disagree(j, logits.shape[-1], shape[-1]))
            yield logits


def _disagree(j: int, k: int | None, first: int | None) -> str:
    return f"member {j} has {k} classes and member 0 has {first}; the members must agree on the classes"


def positive(name: str, value: object) -> int:
    """A setting that counts something."""
    if not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name}={value!r} must be a whole number, at least 1")
    return int(value)


class LogMean:
    """Running log of the mean probability over members, float64."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: Tensor | None = None

    def add(self, logits: Tensor) -> None:
        log_p = torch.log_softmax(logits.double(), -1)
        if self.sum is not None and self.sum.shape != log_p.shape:
            sizes = f"{tuple(self.sum.shape)} and {tuple(log_p.shape)}"
            raise InputError(f"members give outputs of the shapes {sizes}; they must agree on the classes")
        self.sum = log_p if self.sum is None else torch.logaddexp(self.sum, log_p)
        self.count += 1

    def extend(self, logits: Tensor) -> None:
        """Several members at once, [M, N, K]: a GPU is kept waiting by many small operations."""
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


def checked(output: Any, n: int, *, pixels: bool = True) -> Tensor:
    """[N, K] (or [N, H, W, K], a class a pixel) from what a network returned, or an error that says what it was."""
    logits = logits_of(output)
    if logits.ndim not in (2, 4 if pixels else 2) or len(logits) != n or logits.shape[-1] < 2:
        raise InputError(f"the model returned shape {tuple(logits.shape)} for {n} items; expected [N, K] with K ≥ 2")
    return logits


def module(model: Any) -> nn.Module:
    """The model itself, if it is one."""
    if not isinstance(model, nn.Module):
        raise InputError(f"{type(model).__name__} is not a torch.nn.Module; pass the network itself")
    return model


def steps(items: Sequence[int], title: str, *, show: bool) -> Iterable[int]:
    """The items, with a bar of what is done and what is left on stderr when `show`."""
    if not show:
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, title, console=Console(file=sys.stderr), transient=True)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[Network]:
    """Every module in eval mode inside, each back in its own mode afterwards."""
    training = [m for m in model.modules() if m.training]
    try:
        for m in training:
            m.training = False
        yield lambda *args, **kwargs: model(*args, **kwargs)
    finally:
        try:
            _train(training)
        except KeyboardInterrupt:  # it came right now: the rest of them must not stay in eval mode
            _train(training)
            raise


def _train(modules: Sequence[nn.Module]) -> None:
    for m in modules:
        m.training = True
