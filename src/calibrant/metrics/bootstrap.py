"""Bootstrap over items, or over groups of them, through weights on Scores and one sort.

A replicate is a row of counts: how often each item (or each whole group) was drawn. Comparisons and groups need it; the
rankings of one predictor need no more than cells (`cells`), and runs are merged into such cells here too.

Groups are drawn whole, from sums of each group: a weight per group instead of one per item,

    Σ_i w_g(i) x_i = Σ_g w_g Σ_{i in g} x_i

A video of 100 frames has millions of pixels, and every replicate is a weighted sum of the same 100 rows. Counts are
whole numbers, so the runs of a ranking are those of item weights exactly; means agree up to the order of summation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.binning import BinSums
from calibrant.functional.ranking import Ranking, merged
from calibrant.functional.scores import Scores
from calibrant.metrics.cells import CELLS
from calibrant.metrics.table import Metric, Panel

_CHUNK = 1 << 22  # weights held at a time
NUMBERS = 1 << 23
"""The most numbers in a table of groups by cells of the ranking."""
AN_ITEM = 16
"""Beyond so many numbers in the table for an item, weights of items are the shorter way."""


def units(scores: Scores) -> tuple[str, int]:
    """What is drawn again, and how many of them there are."""
    if scores.group is None:
        return "items", scores.n
    return "groups", int(scores.group.max()) + 1


def draw(n: int, replicates: int, generator: torch.Generator) -> Tensor:
    """Counts [replicates, n] of n draws with replacement from n units."""
    (drawn,) = _drawn(n, [replicates], generator)
    return drawn


def weights(group: Tensor | None, n: int, replicates: int, seed: int) -> Iterator[Tensor]:
    """Item weights [B, n] in chunks, `replicates` rows in all; groups are drawn whole."""
    for drawn in counts(n if group is None else int(group.max()) + 1, n, replicates, seed):
        yield drawn if group is None else drawn[:, group]


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
) -> Iterator[list[Panel]]:
    """Chunk after chunk, each panel under the same draws."""
    group, n, count = panels[0].scores.group, panels[0].scores.n, units(panels[0].scores)[1]
    if group is not None and all(pays(panel, count) for _, panel in plain):
        tables = [Groups(panel, group[order], count) for order, panel in plain]
        for c in counts(count, max(count, CELLS), replicates, seed):
            yield [Grouped(table, c) for table in tables]
        return
    places = _places(panels) if group is None else None  # items are drawn in an order that they decide, not the rows
    for w in weights(group, n, replicates, seed):
        yield [p.reweighted(w[:, which if places is None else places[which]]) for which, p in plain]


def coarse(panel: Panel) -> tuple[Tensor, Panel]:
    """(order, the panel of the same items sorted by confidence, its runs merged into ≤ CELLS cells)."""
    ranking, scores = panel.ranking, panel.scores
    order = ranking.positions
    columns = ("labels", "predicted", "correct", "confidence", "log_error", "log_p_label", "brier")
    moved: dict[str, Any] = {c: None if getattr(scores, c) is None else getattr(scores, c)[order] for c in columns}
    # the ranking of a sorted panel needs no order; group and classwise are not needed for weights
    cell = merged(ranking, CELLS)
    out = Panel(replace(scores, **moved, group=None))
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


class Groups:
    """The group of each item of a panel, and what its ranking's cells hold of each."""

    def __init__(self, panel: Panel, group: Tensor, count: int) -> None:
        self.panel, self.group, self.count = panel, group, count

    @cached_property
    def sizes(self) -> Tensor:
        return torch.bincount(self.group, minlength=self.count).double()

    def sums(self, values: Tensor) -> Tensor:
        """Σ of a per-item column in each group, [G]."""
        return torch.bincount(self.group, values.double(), minlength=self.count)

    def table(self, index: Tensor, columns: int, values: Tensor | None = None) -> Tensor:
        """How many items (or the sum of their values) each group has at each index, [G, columns]."""
        weights = None if values is None else values.double()
        flat = torch.bincount(self.group * columns + index, weights, minlength=self.count * columns)
        return flat.double().view(self.count, columns)

    @cached_property
    def cell(self) -> Tensor:
        """The run of ties that each item is in."""
        ranking = self.panel.ranking
        return torch.empty_like(ranking.run).scatter_(0, ranking.positions, ranking.run)

    def by_run(self, values: Tensor | None = None) -> Tensor:
        """The same of each run, [G, R]."""
        return self.table(self.cell, self.panel.ranking.runs, values)

    @cached_property
    def runs(self) -> tuple[Tensor, Tensor]:
        """(good, bad) items of each group in each run, [G, R]."""
        good = self.by_run(self.panel.hits)
        return good, self.by_run() - good


class Grouped(Panel):
    """The items of `groups` when group g was drawn counts[B, g] times."""

    def __init__(self, groups: Groups, counts: Tensor) -> None:
        super().__init__(groups.panel.scores, counts, groups.panel)  # weights, but of groups
        self.groups, self.counts = groups, counts

    @cached_property
    def runs(self) -> tuple[Tensor, Tensor]:
        good, bad = self.groups.runs
        return self.counts @ good, self.counts @ bad

    @cached_property
    def total(self) -> Tensor:
        return self.counts @ self.groups.sizes

    def mean(self, values: Tensor) -> Tensor:
        return (self.counts @ self.groups.sums(values)) / self.total

    def by_run(self, values: Tensor) -> Tensor:
        return self.counts @ self.groups.by_run(values)

    def _sums(self, index: Tensor) -> BinSums:
        s = self.scores
        columns = (None, s.confidence, s.correct)
        return BinSums(*(self.counts @ self.groups.table(index, s.bins, c) for c in columns))


def pays(panel: Panel, count: int) -> bool:
    """Whether the table of groups by runs is small, both in itself and beside the items."""
    size = count * panel.ranking.runs
    return size <= NUMBERS and size <= AN_ITEM * panel.scores.n
