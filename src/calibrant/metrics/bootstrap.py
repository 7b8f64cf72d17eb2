"""Bootstrap: of ordered cells, of items, or of whole groups of them.

A ranking sees an item only through its cell, so a replicate of N items is a multinomial draw of cells, whatever N is.
Runs of ties are cells; neighbouring ones are merged until at most `CELLS` are left. A metric of a replicate then moves
by what a tie inside a cell of N/CELLS items is worth, and the interval is of deviations from the same metric on the
same cells, so that the merge cancels. Memory, streams and the two sets of an OOD test share this.

Comparisons need weights on items, which both predictors see; groups are drawn whole (`groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.ranking import Ranking, cell_of, merged
from calibrant.functional.scores import Scores
from calibrant.metrics.bca import interval
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.table import Metric, Panel
from calibrant.metrics.units import Groups, UnitPanel
from calibrant.types import Estimate

CELLS = 1024
"""Cells that a replicate sees."""

_HELD = 1 << 17  # numbers of a chunk of replicates: they stay in the cache
_PLAIN = 4  # items in a cell

Ranked = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
"""(good [B, C], bad [B, C]), the highest scores first → each metric's values [B], in 0…1."""

_CHUNK = 1 << 22  # weights held at a time


def merge(*columns: Tensor, cells: int = CELLS) -> tuple[Tensor, ...]:
    """Columns [R] of ordered runs, summed into at most `cells` cells of about N/cells items; (good, bad) come first."""
    size = columns[0] + columns[1]
    if len(size) <= cells:
        return columns
    cell = cell_of(torch.cumsum(size, 0) - size, float(size.sum()), cells)
    held = int(cell[-1]) + 1
    return tuple(c.new_zeros(held).index_add_(0, cell, c) for c in columns)


def draws(counts: Tensor, replicates: int, generator: np.random.Generator) -> Iterator[Tensor]:
    """How many items each cell [C] gets when all are drawn again with replacement: [B, C], chunk by chunk."""
    n, c = int(counts.sum()), len(counts)
    few = n <= _PLAIN * c  # drawing items is then faster than drawing multinomials
    cell = np.repeat(np.arange(c), counts.numpy().astype(np.int64)) if few else np.empty(0, np.int64)
    share = (counts / n).numpy()
    step = max(1, _HELD // c)
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        if few:
            at = cell[generator.integers(n, size=(rows, n))] + c * np.arange(rows)[:, None]
            drawn = np.bincount(at.ravel(), minlength=rows * c).reshape(rows, c)
        else:
            drawn = generator.multinomial(n, share, size=rows)
        yield torch.from_numpy(drawn).double()


def resampled(good: Tensor, bad: Tensor, resampling: Resampling, *, apart: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Replicates of (good [C], bad [C]), in chunks [B, C]; `apart`: each of the two is a sample of its own."""
    generator = np.random.default_rng(resampling.seed % 2**64)
    if apart:
        yield from zip(*(draws(c, resampling.replicates, generator) for c in (good, bad)), strict=True)
        return
    both = torch.cat([good, bad])
    held = both > 0
    for drawn_cells in draws(both[held], resampling.replicates, generator):
        full = drawn_cells.new_zeros(len(drawn_cells), len(both))
        full[:, held] = drawn_cells
        yield full[:, : len(good)], full[:, len(good) :]


def with_bca(
    points: Mapping[str, Estimate],
    compute: Ranked,
    good: Tensor,
    bad: Tensor,
    resampling: Resampling,
    *,
    method: str,
    apart: bool = False,
) -> dict[str, Estimate]:
    """BCa intervals of functions of the counts; the acceleration is that of the items' influences."""
    good, bad = (c.cpu() for c in merge(good.double(), bad.double()))
    chunks = [compute(g, b) for g, b in resampled(good, bad, resampling, apart=apart)]
    slopes = _influences(compute, (good, bad), apart)
    out = {}
    for name, point in points.items():
        value, accelerated = slopes[name]
        replicates = torch.cat([chunk[name] for chunk in chunks])
        e = interval(point, value, replicates, accelerated, resampling.level, method)
        out[name] = e if e.low is None or e.high is None else replace(e, low=max(e.low, 0.0), high=min(e.high, 1.0))
    return out


def _influences(compute: Ranked, held: Sequence[Tensor], apart: bool) -> dict[str, tuple[float, float]]:
    """Each metric's (value on the cells, acceleration Σu³ / 6(Σu²)^{3/2} of the items' influences u)."""
    weights = [c[None].clone().requires_grad_(True) for c in held]
    out = {}
    with torch.enable_grad():
        for name, value in compute(weights[0], weights[1]).items():
            # the quantile in fpr95 has no slope in the good items
            found = torch.autograd.grad(
                value.sum(), weights, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            slopes = [s[0] for s in found]
            samples = list(zip(held, slopes, strict=True)) if apart else [(torch.cat(list(held)), torch.cat(slopes))]
            third = square = 0.0
            for count, slope in samples:
                u = slope - (slope * count).sum() / count.sum()
                square += float((count * u.square()).sum())
                third += float((count * u.pow(3)).sum())
            out[name] = (float(value.detach()), 0.0 if square == 0 else third / (6 * square**1.5))
    return out


def units(scores: Scores) -> tuple[str, int]:
    """What is drawn again, and how many of them there are."""
    if scores.group is None:
        return "items", scores.n
    return "groups", int(scores.group.max()) + 1


def draw(n: int, replicates: int, generator: torch.Generator) -> Tensor:
    """Counts [replicates, n] of n draws with replacement from n units."""
    (drawn,) = _drawn(n, [replicates], generator)
    return drawn


def counts(units: int, held: int, replicates: int, seed: int) -> Iterator[Tensor]:
    """How often each unit was drawn, [B, units] in chunks of rows that need `held` numbers each.

    The chunks share their memory: one is gone when the next is asked for.
    """
    rows = max(1, _CHUNK // max(held, 1))
    sizes = [min(rows, replicates - start) for start in range(0, replicates, rows)]
    yield from _drawn(units, sizes, torch.Generator().manual_seed(seed))


def _drawn(n: int, sizes: Sequence[int], generator: torch.Generator) -> Iterator[Tensor]:
    """Counts [B, n] of n draws from n units for each B of `sizes`, into the same memory: to be given fresh pages for
    millions of items takes the system longer than to fill them."""
    rows = max(sizes, default=0)
    index = torch.empty(rows, n, dtype=torch.long)
    count = torch.empty(rows * n, dtype=torch.float64)
    one = torch.ones(rows * n, dtype=torch.float64)
    for size in sizes:
        flat = torch.randint(n, (size, n), generator=generator, out=index[:size])
        flat += n * torch.arange(size)[:, None]
        yield count[: size * n].zero_().scatter_add_(0, flat.view(-1), one[: size * n]).view(size, n)


def bootstrap(
    panels: Sequence[Panel], metrics: Sequence[Metric], replicates: int, seed: int
) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """For each panel (of the same items) ({metric: value on the cells}, {metric: its replicates [B]}).

    All panels see the same weights, which is what makes a comparison paired.
    """
    plain = [coarse(p) for p in panels]
    parts: list[dict[str, list[Tensor]]] = [{m.name: [] for m in metrics} for _ in panels]
    for seen in _replicates(panels, plain, replicates, seed):
        for panel, out in zip(seen, parts, strict=True):
            for m in metrics:
                out[m.name].append(m(panel))
    values = [{m.name: m(panel) for m in metrics} for _, panel in plain]
    return [(v, {k: torch.cat(c) for k, c in out.items()}) for v, out in zip(values, parts, strict=True)]


def _replicates(
    panels: Sequence[Panel], plain: Sequence[tuple[Tensor, Panel]], replicates: int, seed: int
) -> Iterator[list[UnitPanel]]:
    """Chunk after chunk, each panel under the same draws."""
    group, count = panels[0].scores.group, units(panels[0].scores)[1]
    unit = _places(panels) if group is None else group  # items are drawn in an order that they decide, not the rows
    sums = [Groups(panel, unit[order], count) for order, panel in plain]
    for drawn in counts(count, max(count, CELLS), replicates, seed):
        yield [UnitPanel(each, drawn) for each in sums]


def coarse(panel: Panel) -> tuple[Tensor, Panel]:
    """(order, the panel of the same items sorted by confidence, its runs merged into ≤ CELLS cells)."""
    ranking, scores = panel.ranking, panel.scores
    order = ranking.positions
    cell = merged(ranking, CELLS)
    out = Panel(replace(scores.take(order), group=None))  # weights of items need no groups, a sorted panel no order
    out.ranking = Ranking(None, cell, int(cell[-1]) + 1)
    out.width_index, out.mass_index = panel.width_index[order], panel.mass_index[order]
    return order, out


def _places(panels: Sequence[Panel]) -> Tensor:
    """Where each item stands when items are sorted by all that the panels say of them, the first panel first."""
    keys = []
    for s in (p.scores for p in panels):
        columns = [c for c in (s.log_error, s.brier, s.log_p_label) if c is not None]
        keys += [np.round(c.numpy(), 9) for c in columns] + [s.correct.numpy()]
    order = torch.from_numpy(np.lexsort(keys[::-1]))
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return places
