"""Bootstrap over items, or over groups of them, through weights on Scores and one sort.

A replicate is a row of counts: how often each item (or each whole group) was drawn. Scores are sorted
once, so weights can be drawn for items that already stand in rank order. For replicates alone, runs of
the ranking are merged into at most `CELLS` cells: a metric of a replicate then moves by what a tie
inside a cell of N/CELLS items is worth, and the interval is of deviations from the same metric on the
same cells, so that the merge cancels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.ranking import Ranking
from calibrant.functional.scores import Scores
from calibrant.metrics.grouped import Grouped, Groups, pays
from calibrant.metrics.table import Metric, Panel

CELLS = 1024
"""Cells of the ranking that a replicate sees; with fewer items every run of ties is its own."""

_CHUNK = 1 << 22  # weights held at a time


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
    drawn = _places(panels) if len(panels) > 1 and group is None else None
    for w in weights(group, n, replicates, seed):
        # one predictor alone is drawn in its own rank order; several share one that the items decide, not the rows
        order = [which if drawn is None else drawn[which] for which, _ in plain]
        alone = len(panels) == 1 and group is None
        yield [p.reweighted(w if alone else w[:, which]) for which, (_, p) in zip(order, plain, strict=True)]


def coarse(panel: Panel) -> tuple[Tensor, Panel]:
    """(order, the panel of the same items sorted by confidence, its runs merged into ≤ CELLS cells)."""
    ranking, scores = panel.ranking, panel.scores
    order = settled(ranking, scores)
    columns = ("labels", "predicted", "correct", "confidence", "log_error", "log_p_label", "brier")
    moved: dict[str, Any] = {c: None if getattr(scores, c) is None else getattr(scores, c)[order] for c in columns}
    # the ranking of a sorted panel needs no order; group and classwise are not needed for weights
    cell = merged(ranking, CELLS)
    out = Panel(replace(scores, **moved, group=None))
    out.ranking = Ranking(None, cell, int(cell[-1]) + 1)
    out.width_index, out.mass_index = panel.width_index[order], panel.mass_index[order]
    return order, out


def settled(ranking: Ranking, scores: Scores) -> Tensor:
    """Which item stands at each rank. Ties stand in an order that their own values decide: draws by rank must not
    depend on the order of the rows."""
    order = ranking.positions
    if ranking.runs == scores.n:
        return order
    columns = [c for c in (scores.brier, scores.log_p_label) if c is not None]
    keys = [np.round(c[order].numpy(), 9) for c in columns]  # rounded: the same row may differ in its last bit
    inside = np.lexsort([*keys, scores.correct[order].numpy(), ranking.run.numpy()])
    return order[torch.from_numpy(inside)]


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


def merged(ranking: Ranking, cells: int) -> Tensor:
    """Cell of each ranked item: runs of ties kept whole, about n/cells items each."""
    n = len(ranking.run)
    if ranking.runs <= cells:
        return ranking.run
    slot = ranking.start[:-1] * cells // n  # the cell in which each run begins
    cell: Tensor = torch.unique_consecutive(slot, return_inverse=True)[1]
    return cell[ranking.run]
