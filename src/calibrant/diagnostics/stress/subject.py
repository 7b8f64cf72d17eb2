"""The subject of a stress run: a network or an ensemble, and how raw images become its input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.diagnostics.stress.material import digest
from calibrant.ensembles.ensemble import Ensemble, LogMean, checked, evaluating
from calibrant.errors import InputError
from calibrant.functional.novelty import entropy

HELD = 1 << 30
"""Bytes of images that are held at once."""


@dataclass(frozen=True)
class Answer:
    """The subject's logits [N, K], pooled over members, and the mean entropy of the members [N]."""

    logits: Tensor
    member_entropy: Tensor | None = None


@dataclass(frozen=True)
class Subject:
    """`predictor` is a module, a function of normalised images, or an ensemble; `prepare` replaces mean and std."""

    predictor: Any
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        if not callable(self.predictor):
            raise InputError(f"{type(self.predictor).__name__} is not a model: it cannot be called on images")

    @property
    def members(self) -> int:
        return self.predictor.size if isinstance(self.predictor, Ensemble) else 1

    @property
    def raw(self) -> bool:
        """Whether the logits have the network's own scale; pooled ones do not."""
        return self.members == 1

    @torch.inference_mode()
    def answer(self, batches: Iterable[Tensor]) -> Answer:
        """Return the logits for these images."""
        with torch.random.fork_rng(devices=[]):
            found = [self._pooled(chunk) for chunk in _chunks(batches)]
        logits, spread = (torch.cat(each) for each in zip(*found, strict=True))
        return Answer(logits, spread if self.members > 1 else None)

    def _pooled(self, batches: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the logits, pooled if there are several members, and the members' mean entropy."""
        pooled, spread = LogMean(), torch.zeros(())
        for j in range(self.members):
            with self._member(j) as network:
                logits = torch.cat([self._logits(network, x.to(self.device)) for x in batches])
            pooled.add(logits)
            spread = spread + entropy(logits)
        return logits if self.members == 1 else pooled.value(), spread / self.members

    def _member(self, j: int) -> AbstractContextManager[Callable[..., Any]]:
        if isinstance(self.predictor, Ensemble):
            return self.predictor.member(j)
        return evaluating(self.predictor) if isinstance(self.predictor, nn.Module) else nullcontext(self.predictor)

    def _logits(self, network: Callable[..., Any], x: Tensor) -> Tensor:
        logits = checked(network(self.normalised(x)), len(x))
        if bool(logits.isnan().any()):
            raise InputError("the model returned NaN; it cannot be judged")
        return logits.cpu() if logits.dtype == torch.float64 else logits.float().cpu()

    def normalised(self, x: Tensor) -> Tensor:
        """Return (x/255 − mean)/std for bytes, (x − mean)/std for floats, or `prepare` of the images in [0, 1]."""
        unit = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        if self.prepare is not None:
            return self.prepare(unit)
        for values, name in ((self.mean, "mean"), (self.std, "std")):
            if values is not None and len(values) not in (1, x.shape[1]):
                channels = "1 channel" if x.shape[1] == 1 else f"{x.shape[1]} channels"
                raise InputError(f"{name} has {len(values)} values for images of {channels}; give one for each, or one")
        if self.std is not None and min(self.std) <= 0:
            raise InputError(f"std has {min(self.std):g}; images are divided by it, so it must be greater than 0")
        mean = torch.tensor(self.mean if self.mean is not None else [0.0], device=x.device)[:, None, None]
        std = torch.tensor(self.std if self.std is not None else [1.0], device=x.device)[:, None, None]
        return (unit - mean) / std

    def fingerprint(self) -> str:
        """Return a hash of every weight, to tell another network of the same name."""
        networks = getattr(self.predictor, "models", None) or [getattr(self.predictor, "model", self.predictor)]
        states = [sorted(m.state_dict().items()) for m in networks if isinstance(m, nn.Module)]
        return digest(*(part for state in states for name, t in state for part in (name, t.detach().cpu())))


def _chunks(batches: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of batches. Every member reads a whole list before the next member, because drawing a member takes
    time; images are made once."""
    held, size = list[Tensor](), 0
    for x in batches:
        held.append(x)
        size += x.nbytes
        if size > HELD:
            yield held
            held, size = [], 0
    if held:
        yield held
