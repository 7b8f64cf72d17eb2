"""The quantile of prediction sets, for independent items or for independent groups of items.

If groups are exchangeable (images) but the items of a group are not, an item of a group of m counts 1/m, and q is the
smallest score with (G + 1)(1 − α) of the G groups at or below it. Then the share of misses in a new group is at most α
on average (conformal risk control, Angelopoulos 2024). With one item in each group this is the r of `conformal.py`.
`guarantee` asks for the smallest q whose mean share of misses passes the test of Hoeffding–Bentkus. Shares only fall as
q grows, so the search needs no correction (Bates 2021).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.decisions.conformal import PredictionSets, scorer
from calibrant.decisions.rule import KNOWN_GROUPS, asked, cells_of, rows_of, units_of
from calibrant.decisions.threshold import hoeffding_bentkus_p
from calibrant.errors import InputError, warn
from calibrant.functional.binomial import Floats
from calibrant.posthoc.map import FitRecord
from calibrant.types import Predictions

SIZED = 100_000
"""The mean size of sets is that of at most this many items, evenly spaced."""


def choose_sets(
    p: Predictions,
    coverage: float,
    *,
    method: str = "lac",
    guarantee: float | None = None,
    by: str | None = None,
    randomised: bool = False,
    penalty: float | None = None,
    k_reg: int | None = None,
) -> PredictionSets:
    """Choose the quantiles on predictions that the map has been applied to."""
    from scipy.special import betaincinv

    draft = scorer(p, method, randomised, penalty, k_reg)
    cell, names = cells_of(by, p, p.labels)
    own, chance = (t.numpy() for t in draft.of_labels(p))
    parts = rows_of(cell, len(names))
    of = units_of(p, by)
    units = [None if of is None else of.numpy()[i] for i in parts]
    found = [quantile(own[i], chance[i], coverage, guarantee, g) for i, g in zip(parts, units, strict=True)]
    sizes = [len(i) if g is None else len(np.unique(g)) for i, g in zip(parts, units, strict=True)]
    few = [name for name, (q, _) in zip(names, found, strict=True) if np.isinf(q)]
    if few:
        report_too_few(p, few, sizes, by, asked(coverage), needed(coverage, guarantee))
    q, tie = torch.tensor(found, dtype=torch.float64).T.contiguous()
    beta = None
    if by is None and of is None:
        r = place(p.n, coverage, guarantee)
        beta = (r, p.n + 1 - r)
    certificate = {
        "coverage": coverage,
        "guarantee": guarantee,
        "n": p.n if of is None else len(torch.unique(of)),
        "grouped": of is not None,
        "cells": None if by is None else dict(zip(names, sizes, strict=True)),
        "beta": beta,
        "tied": not randomised and by is None and int((own == float(q[0])).sum()) > 1,
        "range": None if beta is None else betaincinv(*beta, [0.025, 0.975]).tolist(),
        "size": 0.0,
    }
    record = FitRecord(certificate=certificate)
    rule = replace(draft, quantile=q, tie=tie, by=by, groups=names if by == "group" else (), record=record)
    some = p if p.n <= SIZED else p.take(torch.arange(0, p.n, -(-p.n // SIZED)))
    sets = rule.decide(some).sets
    assert sets is not None
    certificate["size"] = float(sets.sum(1).double().mean())
    return rule


def report_too_few(p: Predictions, few: list[str], sizes: list[int], by: str | None, promised: str, least: int) -> None:
    """Raise an error if no cell has enough items, and warn if some have too few."""
    where, grouped = f"{p.source}: " if p.source else "", units_of(p, by) is not None
    kind = "groups" if grouped else "items"
    if len(few) == len(sizes):
        said = f"{where}{max(sizes)} {kind}{'' if by is None else f' of each {by}'} are too few to promise {promised}"
        raise InputError(f"{said}: {least} are needed{KNOWN_GROUPS if grouped else ''}")
    warn(
        f"{where}{len(few)} of {len(sizes)} {'classes' if by == 'class' else 'groups'} ({', '.join(few[:3])}"
        f"{', …' if len(few) > 3 else ''}) have fewer than the {least} {kind} that {promised} needs: "
        f"{'they are in every set' if by == 'class' else 'their sets hold every class'}"
    )


def place(n: int, coverage: float, guarantee: float | None) -> int:
    """r, the rank of the quantile among n scores in rising order. It is larger than n if there are too few scores."""
    if guarantee is None:
        return max(1, int(np.ceil((n + 1) * coverage - 1e-9)))
    from scipy.stats import binom

    return int(binom.ppf(guarantee, n, coverage)) + 1


def needed(coverage: float, guarantee: float | None) -> int:
    """The smallest number of items that allows the promise."""
    if guarantee is None:
        return int(np.ceil(coverage / (1 - coverage) * (1 - 1e-9)))
    return int(np.ceil(np.log(1 - guarantee) / np.log(coverage) - 1e-9))


def quantile(
    score: Floats, u: Floats, coverage: float, guarantee: float | None, group: NDArray[np.int64] | None = None
) -> tuple[float, float]:
    """Return q and the u of the item that it came from. q is infinite if there are too few items."""
    if group is not None:
        return _quantile_of_groups(score, u, coverage, guarantee, group)
    r = place(len(score), coverage, guarantee)
    if r > len(score):
        return float("inf"), 1.0
    q = np.partition(score, r - 1)[r - 1]
    tied = np.sort(u[score == q])
    return float(q), float(tied[r - 1 - int((score < q).sum())])


def _quantile_of_groups(
    score: Floats, u: Floats, coverage: float, guarantee: float | None, group: NDArray[np.int64]
) -> tuple[float, float]:
    order = np.lexsort((u, score))
    size = np.bincount(group)
    count = int((size > 0).sum())
    held = np.cumsum(1 / size[group[order]])  # number of groups at this score or below, counted in shares
    if guarantee is None:
        enough = held >= (count + 1) * coverage - 1e-9 * (count + 1)
    else:
        p = hoeffding_bentkus_p(np.maximum(count - held, 0.0), np.full(len(held), count), 1 - coverage)
        enough = p <= 1 - guarantee
    if not enough.any():
        return float("inf"), 1.0
    i = order[int(np.argmax(enough))]
    return float(score[i]), float(u[i])
