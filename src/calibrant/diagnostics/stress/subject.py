"""The subject of a stress run: a network or an ensemble, and how raw images become its input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.diagnostics.stress.material import digest
from calibrant.ensembles.ensemble import Ensemble, LogMean, checked, evaluating
from calibrant.errors import InputError
from calibrant.functional.novelty import entropy

Batches = Callable[[], Iterable[Tensor]]
"""A function that returns the raw images, batch after batch; it is called once per member."""

KEPT = 1 << 30
"""The bytes of images that are kept in memory for the next member; larger cells are made anew for each member."""


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
    def answer(self, batches: Batches) -> Answer:
        """Return the logits for these images."""
        with torch.random.fork_rng(devices=[]):
            if isinstance(self.predictor, Ensemble):
                return self._pooled(self.predictor, batches)
            if isinstance(self.predictor, nn.Module):
                with evaluating(self.predictor) as network:
                    return Answer(self._logits(network, batches()))
            return Answer(self._logits(self.predictor, batches()))

    def _pooled(self, ensemble: Ensemble, batches: Batches) -> Answer:
        if ensemble.size == 1:
            with ensemble.member(0) as network:
                return Answer(self._logits(network, batches()))
        images = _kept(batches)
        pooled, spread = LogMean(), torch.zeros(())
        for j in range(ensemble.size):
            with ensemble.member(j) as network:
                logits = self._logits(network, images())
            pooled.add(logits)
            spread = spread + entropy(logits)
        return Answer(pooled.value(), spread / ensemble.size)

    def _logits(self, network: Callable[..., Any], batches: Iterable[Tensor]) -> Tensor:
        out = []
        for x in batches:
            x = x.to(self.device)
            logits = checked(network(self.normalised(x)), len(x))
            if not bool(torch.isfinite(logits).all() if logits.isnan().any() else True):
                raise InputError("the model returned NaN; it cannot be judged")
            out.append(logits.float().cpu() if logits.dtype != torch.float64 else logits.cpu())
        return torch.cat(out)

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


def _kept(batches: Batches) -> Batches:
    """Return the same batches from memory, if they are small enough."""
    held, size = [], 0
    for x in batches():
        size += x.numel() * x.element_size()
        if size > KEPT:
            return batches
        held.append(x)
    return lambda: held
