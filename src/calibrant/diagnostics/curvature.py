"""The curvature of a model's mean loss as an operator: a matrix over the parameters, given by its products A @ v.

    L(θ) = 1/N Σ_i ℓ(f(x_i; θ), y_i) + λ/2 ‖θ‖²
    hessian        ∂²L/∂θ²                          by differentiating (∇L)·v
    gauss_newton   1/N Σ_i J_iᵀ (∂²ℓ_i/∂f²) J_i + λI   J = ∂f/∂θ
    fisher         1/N Σ_i ∇ℓ_i ∇ℓ_iᵀ + λI             empirical: the labels are the data's

BatchNorm uses its running statistics. Items are then independent, and a batch that is too large for the memory can be
split with the same result. PyHessian, which SS used, does the same. Dropout is active with one mask per operator, as in
SS (App. D.3: MC dropout with an ensemble size of one); `dropout=False` switches it off. A batch that is split draws
other masks.

curvlinops has these operators too, but differentiates forward over reverse: every product runs the network again, and
every operation needs a forward derivative. Here the graph of a batch is built once and serves all its products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from calibrant.diagnostics.batches import class_logits, labelled
from calibrant.diagnostics.curvature_products import KINDS, Product, gradient, twice_differentiable
from calibrant.ensembles.dropout import MCDropout, dropouts
from calibrant.ensembles.ensemble import evaluating, positive
from calibrant.ensembles.perturbation import select
from calibrant.errors import InputError, out_of_memory, unknown
from calibrant.nn.smoothing import reference

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, targets) → the mean loss, or one loss per item."""


@dataclass(eq=False)
class Curvature:
    """The matrix of the mean loss over all items of `batches`; a batch is (x, y, …) or a dict with `labels`."""

    model: nn.Module
    batches: Sequence[Any]
    loss: Loss = F.cross_entropy
    kind: str = "hessian"
    parameters: Mapping[str, nn.Parameter] | None = None  # by default all
    weight_decay: float = 0.0  # λ
    dropout: bool = True
    mask: int = 0  # number of the dropout mask
    chunk: int | None = None  # items per pass; halved whenever memory runs out
    _built: Product | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("curvature", self.kind, KINDS)
        if self.parameters is None:
            self.parameters = select(self.model, "all")
        self._thetas = list(self.parameters.values())
        self._sizes = [p.numel() for p in self._thetas]
        if self.chunk is not None:
            positive("chunk", self.chunk)
        self._read = [labelled(batch, self.device) for batch in self.batches]
        drops = self.dropout and bool(dropouts(self.model))
        self._masked = MCDropout(self.model, self.mask + 1) if drops else None
        self.items = sum(len(y) for _, _, y in self._read)
        if self.items == 0:
            raise InputError("the batches have no items; pass at least one")
        if torch.finfo(self.dtype).bits < 32:
            raise InputError(f"{self.dtype} keeps too few digits for curvature; pass model.float()")

    @property
    def size(self) -> int:
        return sum(self._sizes)

    @property
    def device(self) -> torch.device:
        return self._thetas[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self._thetas[0].dtype

    def __matmul__(self, v: Tensor) -> Tensor:
        parts = [c.view_as(p) for c, p in zip(torch.split(v, self._sizes), self._thetas, strict=True)]

        def times(network: Callable[..., Any], args: Any, kwargs: Any, y: Tensor) -> Sequence[Tensor | None]:
            product = self._built or self._build(network, args, kwargs, y)
            if len(y) == self.items:  # the graph is kept: the next product needs no forward pass
                self._built = product
            with twice_differentiable():
                return product(parts)

        return self._mean(self.weight_decay * v, times)

    def gradient(self) -> Tensor:
        """Return ∇L without the λ term. Trained networks have their top eigenvectors near it (Gur-Ari et al. 2018)."""

        def slope(network: Callable[..., Any], args: Any, kwargs: Any, y: Tensor) -> Sequence[Tensor | None]:
            with torch.enable_grad():
                loss = _scalar(self.loss(class_logits(network, args, kwargs, y), y))
                return gradient(loss, self._thetas)  # type: ignore[no-any-return]

        return self._mean(torch.zeros(self.size, dtype=self.dtype, device=self.device), slope)

    def _mean(self, start: Tensor, of: Callable[..., Sequence[Tensor | None]]) -> Tensor:
        """Return `start` plus the mean over items of `of(network, args, kwargs, y)`, with one tensor per parameter.

        Each time that memory runs out, a pass takes half as many items.
        """
        while True:
            total = start
            try:
                with self._passes() as network:
                    for args, kwargs, y in self._chunks():
                        total = total + self._flat(of(network, args, kwargs, y)) * (len(y) / self.items)
                return total
            except (RuntimeError, MemoryError) as error:
                largest = min(self.chunk or self.items, max(len(y) for _, _, y in self._read))
                if not out_of_memory(error) or largest == 1:
                    raise
                self._built, self.chunk = None, -(-largest // 2)

    def _flat(self, parts: Sequence[Tensor | None]) -> Tensor:
        """Join one tensor per parameter into a vector; None stands for zeros."""
        each = zip(parts, self._thetas, strict=True)
        return torch.cat([(torch.zeros_like(p) if t is None else t).reshape(-1) for t, p in each])

    def _chunks(self) -> Iterator[tuple[Any, Any, Tensor]]:
        for args, kwargs, y in self._read:
            step = self.chunk or len(y)
            for at in range(0, len(y), step):
                cut = partial(_rows, slice(at, at + step))
                yield tree_map(cut, args), tree_map(cut, kwargs), y[at : at + step]

    def _build(self, network: Callable[..., Any], args: Any, kwargs: Any, y: Tensor) -> Product:
        with torch.enable_grad():
            logits = class_logits(network, args, kwargs, y)
            return KINDS[self.kind](logits, lambda z: _scalar(self.loss(z, y)), self._thetas)

    @contextmanager
    def _passes(self) -> Iterator[Callable[..., Any]]:
        """Yield the network in full precision and with plain operations, which have second derivatives."""
        member = evaluating(self.model) if self._masked is None else self._masked.member(self.mask)
        with (
            member as network,
            reference(),
            sdpa_kernel(SDPBackend.MATH),
            _differentiable(self._thetas),
            full_precision(),
        ):
            yield network


def _scalar(loss: Tensor) -> Tensor:
    if loss.ndim > 0:
        loss = loss.mean()
    if not bool(torch.isfinite(loss)):
        raise InputError(f"the loss of a batch is {loss.item()}; look for weights or inputs that are not finite")
    return loss


def _rows(where: slice, value: Any) -> Any:
    return value[where] if isinstance(value, Tensor) and value.ndim else value


@contextmanager
def _differentiable(thetas: Sequence[Tensor]) -> Iterator[None]:
    """Let frozen parameters require gradients too; they are frozen again afterwards."""
    frozen = [p for p in thetas if not p.requires_grad]
    try:
        for p in frozen:
            p.requires_grad_(True)
        yield
    finally:
        for p in frozen:
            p.requires_grad_(False)


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch TF32 and a caller's autocast off: with three digits, all but the largest eigenvalues would be hidden."""
    backends: Any = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    before = [b.fp32_precision for b in backends]
    try:
        for b in backends:
            b.fp32_precision = "ieee"
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        for b, was in zip(backends, before, strict=True):
            b.fp32_precision = was
