"""The bootstrap, on ordered cells or on units (items, or whole groups of items).

One set of scores: a ranking depends on an item only through its cell, so a replicate of N items is a multinomial draw
of cells, whatever N is. Runs of ties are cells, and neighbouring ones are merged until at most `CELLS` are left. The
merge adds ties inside cells of N/CELLS items and so moves the metric a little. The interval therefore uses deviations
from the same metric on the same cells. `with_bca` serves scores in memory, streams and the two sets of an OOD test.

Comparisons draw items, which both predictors see, and groups are drawn whole: see `bootstrap` and `Groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.ranking import cell_of
from calibrant.functional.scores import Scores
from calibrant.metrics.bca import interval
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.panel import CELLS, Metric, Panel, UnitPanel
from calibrant.metrics.proper import Column
from calibrant.metrics.refinement import Runs
from calibrant.types import Estimate

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_HELD = 1 << 17  # numbers in a chunk of drawn cells, which then stays in the cache
_FEW_ITEMS = 4  # up to this many items per cell, items are drawn instead of cells
_CHUNK = 1 << 22  # numbers in a chunk of drawn units

Ranked = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
"""(good [B, C], bad [B, C]), highest scores first → the values [B] of each metric, in 0…1."""


def merge(*columns: Tensor, cells: int = CELLS) -> tuple[Tensor, ...]:
    """Sum columns [R] of ordered runs into at most `cells` cells of about N/cells items each.

    The first two columns are the correct and the incorrect items.
    """
    size = columns[0] + columns[1]
    if len(size) <= cells:
        return columns
    cell = cell_of(torch.cumsum(size, 0) - size, float(size.sum()), cells)
    held = int(cell[-1]) + 1
    return tuple(c.new_zeros(held).index_add_(0, cell, c) for c in columns)


def draws(counts: Tensor, replicates: int, generator: np.random.Generator) -> Iterator[Tensor]:
    """Items in each cell when all items are drawn again with replacement, [B, C], chunk by chunk."""
    n, c = int(counts.sum()), len(counts)
    few = n <= _FEW_ITEMS * c  # then drawing items is faster than drawing multinomials
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
    """Replicates of (good [C], bad [C]) in chunks [B, C]. With `apart`, each of the two is resampled on its own."""
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
    """BCa intervals of functions of the cells' counts."""
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
    """(value on the cells, acceleration Σu³ / 6(Σu²)^{3/2}) of each metric; u are the items' influences."""
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


def resampled_units(scores: Scores) -> tuple[str, int]:
    """What is resampled ("items" or "groups"), and how many there are."""
    if scores.group is None:
        return "items", scores.n
    return "groups", int(scores.group.max()) + 1


def counts(units: int, held: int, replicates: int, seed: int) -> Iterator[Tensor]:
    """How often each unit is drawn in `units` draws with replacement, in chunks [B, units].

    B is chosen so that B × `held` numbers fit into a chunk. The chunks share their memory, because the system takes
    longer to provide fresh pages than we take to fill them. So a chunk is overwritten when the next one is requested.
    """
    rows = min(replicates, max(1, _CHUNK // max(held, 1)))
    generator = torch.Generator().manual_seed(seed)
    index = torch.empty(rows, units, dtype=torch.long)
    count = torch.empty(rows * units, dtype=torch.float64)
    one = torch.ones(rows * units, dtype=torch.float64)
    for start in range(0, replicates, rows):
        size = min(rows, replicates - start)
        flat = torch.randint(units, (size, units), generator=generator, out=index[:size])
        flat += units * torch.arange(size)[:, None]
        yield count[: size * units].zero_().scatter_add_(0, flat.view(-1), one[: size * units]).view(size, units)


class Groups:
    """Sums over the items of each group of a panel, as `Units`."""

    def __init__(self, panel: Panel, group: Tensor, count: int) -> None:
        self.scores, self.group, self.count = panel.scores, group, count
        ranking = panel.ranking
        run = torch.empty_like(ranking.run).scatter_(0, ranking.positions, ranking.run)
        hit = panel.hits.bool()
        self._good, self._bad = (self._by_run(run[which], group[which], ranking.runs) for which in (hit, ~hit))

    def _by_run(self, run: Tensor, group: Tensor, runs: int) -> csr_array:
        """How many of these items each group has in each run, [runs, U]; sparse, because an item is in one run."""
        from scipy.sparse import csr_array

        ones = torch.ones(len(run), dtype=torch.float64)
        return csr_array((ones.numpy(), (run.numpy(), group.numpy())), shape=(runs, self.count))

    @cached_property
    def size(self) -> Tensor:
        return torch.bincount(self.group, minlength=self.count).double()

    def sums(self, column: Column) -> Tensor:
        return torch.bincount(self.group, column(self.scores).double(), minlength=self.count)

    def drawn_runs(self, counts: Tensor) -> Runs:
        drawn = counts.T.contiguous().numpy()
        return Runs(*(torch.from_numpy(table @ drawn).T.contiguous() for table in (self._good, self._bad)))


def bootstrap(
    panels: Sequence[Panel], metrics: Sequence[Metric], replicates: int, seed: int
) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """({metric: value on the cells}, {metric: replicates [B]}) for each panel.

    The panels hold the same items and see the same draws, which makes a comparison of them paired.
    """
    parts: list[dict[str, list[Tensor]]] = [{m.name: [] for m in metrics} for _ in panels]
    for seen in _replicates(panels, replicates, seed):
        for panel, out in zip(seen, parts, strict=True):
            for m in metrics:
                out[m.name].append(m(panel))
    values = [{m.name: m(panel) for m in metrics} for _, panel in (p.merged_cells for p in panels)]
    return [(v, {k: torch.cat(c) for k, c in out.items()}) for v, out in zip(values, parts, strict=True)]


def _replicates(panels: Sequence[Panel], replicates: int, seed: int) -> Iterator[list[UnitPanel]]:
    """The panels under the same draws, chunk by chunk."""
    group, count = panels[0].scores.group, resampled_units(panels[0].scores)[1]
    unit = _places(panels) if group is None else group
    sums = [Groups(panel, unit[order], count) for order, panel in (p.merged_cells for p in panels)]
    for drawn in counts(count, max(count, CELLS), replicates, seed):
        yield [UnitPanel(each, drawn) for each in sums]


def _places(panels: Sequence[Panel]) -> Tensor:
    """The place of each item when items are sorted by all their scores, so that draws do not depend on the order of the
    rows."""
    keys = []
    for s in (p.scores for p in panels):
        columns = [c for c in (s.log_error, s.brier, s.log_p_label) if c is not None]
        keys += [np.round(c.numpy(), 9) for c in columns] + [s.correct.numpy()]
    order = torch.from_numpy(np.lexsort(keys[::-1]))
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return places
