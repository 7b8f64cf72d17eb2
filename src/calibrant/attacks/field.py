"""What an attack sees of a predictor: logits at a point, and the gradient of an objective of them.

    g_j = ∂/∂x Σ_i objective_j(z(x_i))          (items do not see each other, so the sum's gradient is each item's own)

A network is differentiated as it is. An ensemble is pooled, z = log (1/M) Σ_m softmax z_m, the expectation over its
members (Athalye 2018): the first pass finds the pooled logits, the second takes each member's share of the gradient
while that member exists, because PEP's perturbed weights and dropout's masks are gone afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.attacks.behind import modules
from calibrant.attacks.bounds import Bounds
from calibrant.errors import InputError
from calibrant.functional.model_output import logits_of

FEWEST = 8
"""Rows of a forward pass; fewer are filled up. Libraries choose other kernels for very small batches (a product with
one row is no matrix product), and an item's logits would depend in their last digits on how many came with it."""

FILLED = 256
"""Rows of a pass of a search on CUDA: fewer take the device less time than a processor takes to ask for them."""

HALF = torch.float16
"""Reduced precision. bfloat16 has three bits less, which cost a quarter of a per cent of CW's distance; what float16's
range loses ends as no success, and is attacked once more in full precision."""
SCALE = 2.0**8
"""Gradients are this much larger on their way through half precision, or small ones would lose their digits."""


def rounded(rows: int) -> int:
    """The next 2ᵏ or 3·2ᵏ. cuDNN looks for its kernels anew for every size of a batch that it has not seen: on an H200
    that takes a ResNet-29 as long as a pass over 4,000 images, and out of a search rows leave one by one."""
    step = 1 << max((rows - 1).bit_length() - 2, 0)
    return -(-rows // step) * step


def _looks_for_kernels(rows: Tensor) -> bool:
    return rows.is_cuda


def _rounds_operands(x: Tensor) -> bool:
    """Do convolutions take TF32? On an H200 a ResNet-29's maps pass in four fifths of the time with channels last then,
    and in half as much again where float32 is float32."""
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    return x.is_cuda and x.dtype == torch.float32 and conv.fp32_precision == "tf32"


Objective = Callable[[Tensor], Tensor]
"""logits [N, K] → [N], or [J, N] for J gradients an item."""


class Field:
    """A predictor over pixels. `reduced`: gradients in float16 (CUDA); `logits` is always in full precision."""

    def __init__(self, predictor: Any, bounds: Bounds, dtype: torch.dtype, *, reduced: bool = False) -> None:
        if not callable(predictor):
            raise InputError(f"{type(predictor).__name__} is not a model: it cannot be called on a batch")
        self.predictor, self.bounds, self.dtype, self.reduced = predictor, bounds, dtype, reduced
        self.channels_last, self.ran = True, False
        self.members = int(predictor.size) if _is_ensemble(predictor) else 0
        self.drawn = bool(self.members) and _draws(predictor)

    def among(self, origin: Tensor, rows: Tensor) -> Field:
        """The same seen by some rows of a batch, the others at rest, where a row's logits belong to its batch."""
        return Among(self, origin, rows) if self.drawn else self

    def part(self, rows: Tensor | slice) -> Field:
        """What some of its rows see."""
        return self

    @torch.no_grad()
    def logits(self, pixel: Tensor, *, search: bool = False) -> Tensor:
        """[N, K] in float32 or wider, no gradient. As a caller's own pass, or, in a `search`, in the fastest layout."""
        if (n := len(pixel)) < FEWEST and not self.drawn:
            return self.logits(torch.cat([pixel, pixel[:1].expand(FEWEST - n, *pixel.shape[1:])]), search=search)[:n]
        x = self.bounds.inputs(pixel, self.dtype)
        if self.members:
            return _pool([self._member(j, x) for j in range(self.members)])
        return _wide(_rows(self._output(x) if search else self.predictor(x), len(x)))

    def filled(self, rows: Tensor, most: int) -> Tensor:
        """Numbers of rows, on CUDA with the first of them once more, up to one of few sizes or the `most` there may be.
        Not where dropout draws: more rows have other masks."""
        n = len(rows)
        if self.drawn or not n or not _looks_for_kernels(rows):
            return rows
        missing = max(0, min(max(FILLED, rounded(n)), most) - n)
        return torch.cat([rows, rows[:1].expand(missing)])

    def logits_of(self, pixel: Tensor, most: int, *, search: bool = True) -> Tensor:
        """`logits` of some rows, however many, in a search."""
        rows = self.filled(torch.arange(len(pixel), device=pixel.device), most)
        return self.logits(pixel if len(rows) == len(pixel) else pixel[rows], search=search)[: len(pixel)]

    def gradient(self, pixel: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
        """Logits [N, K] and gradients [J, N, …] at `pixel`; as many backward passes as the objective has rows."""
        with torch.enable_grad():
            point = pixel.detach().requires_grad_()
            if self.members:
                return self._pooled_gradient(point, objective)
            with self._precision(point.device):
                x = self.bounds.inputs(point, self.dtype)
                logits = _wide(_rows(self._output(x) if self.reduced else self.predictor(x), len(x)))
            if not logits.requires_grad:
                raise InputError(
                    f"{_name(self.predictor)} gives logits without a gradient: its output does not depend on its "
                    "input, or it runs under no_grad; hand in the network itself, or an ensemble with member(j)"
                )
            scale = SCALE if self.reduced else 1.0
            return logits.detach(), _gradients(scale * _at_least_2d(objective(logits)), point) / scale

    def lays_out_anew(self, x: Tensor) -> bool:
        """Does a search run in another layout than a caller's own pass?"""
        return self.channels_last and x.ndim == 4 and _rounds_operands(x)

    def _output(self, x: Tensor) -> Any:
        """With channels last, where convolutions are fastest then; not in a network that flattens its maps by `view`,
        which takes no such layout and says so the first time."""
        if not (self.lays_out_anew(x) or (self.reduced and self.channels_last and x.ndim == 4)):
            return self.predictor(x)
        try:
            out = self.predictor(x.contiguous(memory_format=torch.channels_last))
            self.ran = True
            return out
        except RuntimeError as error:
            if self.ran or isinstance(error, torch.OutOfMemoryError):
                raise
            # weights in that layout would force it on maps; where precision is reduced they are a copy of our own
            if self.reduced and isinstance(self.predictor, nn.Module):
                self.predictor.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            try:
                out = self.predictor(x.contiguous())
            except RuntimeError:
                raise error from None
            self.channels_last = False
            return out

    def _pooled_gradient(self, point: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
        """Chain rule through the pool: the share of member m is its own backward pass on ∂objective/∂z_m."""
        with torch.no_grad():
            x = self.bounds.inputs(point, self.dtype)
            each = [self._member(j, x) for j in range(self.members)]
        leaves = [logits.requires_grad_() for logits in each]
        pooled = _pool(leaves)
        rows = _at_least_2d(objective(pooled))
        shares = [torch.autograd.grad(row.sum(), leaves, retain_graph=True) for row in rows]
        total = [torch.zeros_like(point) for _ in rows]
        for m in range(self.members):
            x = self.bounds.inputs(point, self.dtype)
            with self.predictor.member(m) as network:
                logits = _wide(_rows(network(x), len(x)))
                if not logits.requires_grad:
                    raise InputError(f"{_name(self.predictor)} gives members without a gradient: nothing to follow")
                for j, share in enumerate(shares):
                    (part,) = torch.autograd.grad(logits, point, share[m], retain_graph=j + 1 < len(shares))
                    total[j] += part
        return pooled.detach(), torch.stack(total)

    def _member(self, j: int, x: Tensor) -> Tensor:
        with self.predictor.member(j) as network:
            return _wide(_rows(network(x), len(x)))

    def _precision(self, device: torch.device) -> AbstractContextManager[Any]:
        return torch.autocast(device.type, dtype=HALF) if self.reduced else nullcontext()


class Among(Field):
    """Dropout draws the masks of a batch: what a fresh pass over all items says of some, only all of them tell."""

    def __init__(self, field: Field, origin: Tensor, rows: Tensor) -> None:
        super().__init__(field.predictor, field.bounds, field.dtype)
        self.origin, self.rows = origin, rows

    def part(self, rows: Tensor | slice) -> Field:
        return Among(self, self.origin, self.rows[rows])

    def logits(self, pixel: Tensor, *, search: bool = False) -> Tensor:
        whole = self.origin.clone()
        whole[self.rows] = pixel
        return super().logits(whole, search=search)[self.rows]


def _at_least_2d(rows: Tensor) -> Tensor:
    return rows[None] if rows.ndim == 1 else rows


def _gradients(rows: Tensor, point: Tensor) -> Tensor:
    last = len(rows) - 1
    return torch.stack([torch.autograd.grad(row.sum(), point, retain_graph=j < last)[0] for j, row in enumerate(rows)])


def _is_ensemble(predictor: Any) -> bool:
    return not isinstance(predictor, nn.Module) and hasattr(predictor, "member") and hasattr(predictor, "size")


def _draws(predictor: Any) -> bool:
    """Does something in a member draw at random, and so by the batch it stands in?"""
    with predictor.member(0):
        return any(sub.training for network in modules(predictor) for sub in network.modules())


def _pool(members: Sequence[Tensor]) -> Tensor:
    log_p = torch.log_softmax(torch.stack(list(members)), -1)
    return torch.logsumexp(log_p, 0) - math.log(len(members))


def _rows(output: Any, n: int) -> Tensor:
    logits = logits_of(output)
    if logits.ndim != 2 or len(logits) != n or logits.shape[1] < 2:
        raise InputError(f"the model returned {tuple(logits.shape)} for {n} items; expected logits [N, K] with K ≥ 2")
    return logits


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _name(predictor: Any) -> str:
    return type(predictor).__name__ if not hasattr(predictor, "__name__") else str(predictor.__name__)
