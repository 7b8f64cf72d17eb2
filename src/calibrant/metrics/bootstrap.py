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
    index = torch.randint(n, (replicates, n), generator=generator)
    index += n * torch.arange(replicates)[:, None]
    return torch.bincount(index.view(-1), minlength=replicates * n).view(replicates, n)


def weights(group: Tensor | None, n: int, replicates: int, seed: int) -> Iterator[Tensor]:
    """Item weights [B, n] in chunks, `replicates` rows in all; groups are drawn whole."""
    generator = torch.Generator().manual_seed(seed)
    count = n if group is None else int(group.max()) + 1
    rows = max(1, _CHUNK // max(n, 1))
    for start in range(0, replicates, rows):
        drawn = draw(count, min(rows, replicates - start), generator).double()
        yield drawn if group is None else drawn[:, group]


def bootstrap(
    panels: Sequence[Panel], metrics: Sequence[Metric], replicates: int, seed: int
) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """For each panel (of the same items) ({metric: value on the cells}, {metric: its replicates [B]}).

    All panels see the same weights, which is what makes a comparison paired.
    """
    first = panels[0].scores
    plain = [coarse(p) for p in panels]
    parts: list[dict[str, list[Tensor]]] = [{m.name: [] for m in metrics} for _ in panels]
    drawn = _places(panels) if len(panels) > 1 and first.group is None else None
    for w in weights(first.group, first.n, replicates, seed):
        for (order, panel), out in zip(plain, parts, strict=True):
            # one predictor alone is drawn in its own rank order; several share one that the items decide, not the rows
            which = order if drawn is None else drawn[order]
            seen = panel.reweighted(w if len(panels) == 1 and first.group is None else w[:, which])
            for m in metrics:
                out[m.name].append(m(seen))
    values = [{m.name: m(panel) for m in metrics} for _, panel in plain]
    return [(v, {k: torch.cat(c) for k, c in out.items()}) for v, out in zip(values, parts, strict=True)]


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
    start = torch.zeros(ranking.runs, dtype=torch.long)
    start.scatter_reduce_(0, ranking.run, torch.arange(n), "amin", include_self=False)
    slot = start * cells // n  # the cell in which each run begins
    cell: Tensor = torch.unique_consecutive(slot, return_inverse=True)[1]
    return cell[ranking.run]
