"""The loss around a network's weights on a plane (Li et al. 2018; SS Fig. 7 and C.2).

    L(a, b) = loss at θ + a·u + b·v

A random plane has *filter-normalised* directions: each filter of u is as long as the same filter of θ, so that networks
whose weights have other scales can be compared. Biases and BatchNorm do not move. A plane through three checkpoints has
the first at (0, 0), the second at (1, 0) and the third in the upper half; BatchNorm's statistics move too. With
dropout, every mask has a landscape of its own on the same plane (SS Fig. C.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.diagnostics.batches import class_logits, each_batch, labelled
from calibrant.diagnostics.curvature import Loss
from calibrant.ensembles.dropout import MCDropout, dropouts
from calibrant.ensembles.ensemble import Network, evaluating, positive
from calibrant.ensembles.perturbation import rewritten
from calibrant.errors import InputError
from calibrant.files import hashed

State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Plane:
    """Two directions in the space of a network's state, and the coordinates of checkpoints on their plane."""

    u: dict[str, Tensor]
    v: dict[str, Tensor]
    marks: tuple[tuple[float, float], ...] = ((0.0, 0.0),)


@dataclass(frozen=True, eq=False)
class Landscape:
    """The mean loss of each batch at each point: `each` is [masks, len(b), len(a), batches]."""

    a: Tensor
    b: Tensor
    each: Tensor
    marks: tuple[tuple[float, float], ...]

    @property
    def loss(self) -> Tensor:
        """The mean over batches, [masks, len(b), len(a)]."""
        return self.each.mean(-1)

    def rise(self, radius: float = 0.5) -> Tensor:
        """Return [batches]: the mean rise of the loss, over masks and points within `radius` of the weights."""
        far = torch.sqrt(self.b[:, None] ** 2 + self.a**2)
        around, centre = (far <= radius) & (far > 0), far == far.min()
        return (self.each[:, around].mean(1) - self.each[:, centre].mean(1)).mean(0)


def random_plane(model: nn.Module, seed: int = 0) -> Plane:
    """Return filter-normalised random directions; one seed gives networks of one architecture the same random draws."""
    rng = torch.Generator().manual_seed(seed)
    u, v = ({name: _direction(p, rng) for name, p in model.named_parameters()} for _ in range(2))
    return Plane(u, v)


def _direction(p: Tensor, rng: torch.Generator) -> Tensor:
    d: Tensor = torch.randn(p.shape, generator=rng).to(p)
    if p.ndim < 2:  # Li et al. §4: biases and BatchNorm are left alone
        return torch.zeros_like(p)
    long, own = (t.detach().flatten(1).norm(dim=1).reshape(-1, *[1] * (p.ndim - 1)) for t in (d, p))
    return torch.mul(d, own / long.clamp_min(torch.finfo(d.dtype).tiny))


def plane_through(model: nn.Module, second: State, third: State) -> Plane:
    """Return the plane through a network's own weights, at (0, 0), and two other checkpoints."""
    own = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
    for name, t in own.items():
        for other in (second, third):
            if name not in other or other[name].shape != t.shape:
                raise InputError(
                    f"a checkpoint has no {name} of shape {tuple(t.shape)}; pass checkpoints of one network"
                )
    u, w = ({name: other[name].to(t) - t for name, t in own.items()} for other in (second, third))
    length = _dot(u, u)
    if length == 0:
        raise InputError("the second checkpoint is the network itself; pass two others")
    along = _dot(u, w) / length
    v = {name: w[name] - along * u[name] for name in own}
    if (height := _dot(v, v)) <= 1e-12 * length:
        raise InputError("the three checkpoints lie on a line; pass one that does not")
    scale = math.sqrt(length / height)  # the unit of both axes is the distance from the first checkpoint to the second
    return Plane(u, {name: t * scale for name, t in v.items()}, ((0.0, 0.0), (1.0, 0.0), (along, 1 / scale)))


def loss_landscape(
    model: nn.Module,
    batches: Iterable[Any],
    plane: Plane | None = None,
    *,
    a: tuple[float, float] = (-1.0, 1.0),
    b: tuple[float, float] = (-1.0, 1.0),
    points: int = 21,
    loss: Loss = F.cross_entropy,
    masks: int = 0,
    store: str | Path | None = None,
    seed: int = 0,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Landscape:
    """The loss on a grid of `points` × `points` around the weights; by default on a random filter-normalised plane.

    Each of `masks` dropout masks gives a landscape on the same plane; 0 switches dropout off. With `store`, a file,
    every finished row of the grid is saved, and a computation that was killed continues there.
    """
    positive("points", points)
    if masks and not dropouts(model):
        raise InputError(f"{type(model).__name__} has no dropout, so all masks={masks} would be alike; use masks=0")
    plane = random_plane(model, seed) if plane is None else plane
    masked = MCDropout(model, masks) if masks else None
    device = next(model.parameters()).device
    read = [labelled(batch, device) for batch in each_batch(batches)]
    across, up = (torch.linspace(*ends, points, dtype=torch.float64) for ends in (a, b))
    key = _key(model, plane, read, (a, b, points, masks)) if store is not None else ""
    each = _saved(Path(store), key) if store is not None else None
    if each is None:
        each = torch.full((max(masks, 1), points, points, len(read)), torch.nan, dtype=torch.float64)
    for i in progress(range(points)):
        if bool(torch.isnan(each[:, i]).any()):
            for j in range(points):
                with displaced(model, plane, float(across[j]), float(up[i])):
                    for mask, at in enumerate(each[:, i, j]):
                        member = evaluating(model) if masked is None else masked.member(mask)
                        at.copy_(_losses(member, read, loss))
            if store is not None:
                hashed.write_tensors(Path(store), {"each": each}, {"key": key})
    return Landscape(across, up, each, plane.marks)


@torch.no_grad()
def _losses(member: AbstractContextManager[Network], batches: list[Any], loss: Loss) -> Tensor:
    """Return the loss of each batch; NaN becomes infinite, because NaN marks a row that is not done yet."""
    with member as network:
        found = [loss(class_logits(network, args, kwargs, y), y).mean() for args, kwargs, y in batches]
    return torch.nan_to_num(torch.stack(found).double().cpu(), nan=torch.inf)


@contextmanager
def displaced(model: nn.Module, plane: Plane, a: float, b: float) -> Iterator[None]:
    """Inside, the network has the weights of the point (a, b); afterwards its own, bit for bit."""
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    rows = [(name, held[name].data, u, plane.v[name]) for name, u in plane.u.items()]

    def move(_: Sequence[Tensor]) -> None:
        for name, t, u, v in rows:
            t.add_(u, alpha=a).add_(v, alpha=b)
            if name.endswith("running_var"):  # the line through two variances also has negative points
                t.clamp_min_(0)

    with rewritten([t for _, t, *_ in rows], move):
        yield


def _dot(a: State, b: State) -> float:
    return sum(float((a[name].double() * b[name].double()).sum()) for name in a)


def _key(model: nn.Module, plane: Plane, batches: list[Any], settings: Any) -> str:
    """Return a hash of everything that the losses depend on, except the loss function."""
    from torch.utils._pytree import tree_leaves

    inputs = {f"{i}": t for i, t in enumerate(tree_leaves(batches)) if isinstance(t, Tensor)}
    named = [dict(model.state_dict()), plane.u, plane.v, inputs]
    return hashed.tensors_hash(
        {f"{i}.{n}": t.detach().cpu() for i, held in enumerate(named) for n, t in held.items()}, str(settings)
    )


def _saved(path: Path, key: str) -> Tensor | None:
    """Return the losses that an earlier call saved, if there are any."""
    if not path.is_file():
        return None
    held, head = hashed.read_tensors(path, "delete it")
    if head.get("key") != key:
        raise InputError(f"{path} holds the landscape of other weights, items or settings; name another file")
    return held["each"]
