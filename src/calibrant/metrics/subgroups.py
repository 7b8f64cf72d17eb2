"""The metrics in each part of the items (hospital, device, language), and whether one part stands out.

    z_g = (gap_g − gap_rest) / √(se_g² + se_rest²),   gap = mean confidence − accuracy

Among many parts, one looks bad by chance, so p is corrected by Holm's step-down rule. The parts are disjoint and their
statistics nearly independent, so a max-statistic would gain little over Holm.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calibrant.display import HEADLINE, Rows, Shown
from calibrant.errors import CalibrantWarning, InputError, unknown
from calibrant.files.data_frame import given, is_table
from calibrant.functional.inputs import numbered_groups
from calibrant.functional.scores import Scores, positive_class, reduce
from calibrant.metrics.calibration_cells import cells
from calibrant.metrics.compare import holm
from calibrant.metrics.evaluate import About, evaluate_predictions
from calibrant.types import Predictions, Report

MOST = 100
"""A column with more different values holds ids or measurements, not parts."""
ALPHA = 0.05


@dataclass(frozen=True)
class Subgroup:
    """One part: its report, the gap of all other items, and the p-values of the difference between the two gaps."""

    name: str
    report: Report
    rest: float
    p: float
    p_holm: float

    @property
    def gap(self) -> float:
        """Mean confidence − accuracy, which every report by subgroups has."""
        value = self.report["gap"].value
        assert value is not None
        return value

    @property
    def stands_out(self) -> bool:
        """Whether its confidence is further off than that of the others, by more than chance."""
        return self.p_holm < ALPHA and abs(self.gap) > abs(self.rest)

    def to_dict(self) -> dict[str, Any]:
        metrics = {name: e.to_dict() for name, e in self.report.items()}
        return {"group": self.name, "n": self.report.n, "p": self.p, "p_holm": self.p_holm, "metrics": metrics}


@dataclass(frozen=True)
class Subgroups(Shown):
    """The parts of the items by the values of one column, in the order of their names: `groups["north"]`."""

    column: str
    parts: tuple[Subgroup, ...]

    def __getitem__(self, name: str) -> Subgroup:
        named = {part.name: part for part in self.parts}
        if name not in named:
            raise unknown(self.column, str(name), named)
        return named[name]

    def _shown(self) -> tuple[str, Rows]:
        found = f"no {self.column} stands out" if self.worst is None else f"worst {self.column}: {self.worst.name}"
        from calibrant.report.numbers import brief

        metrics = [name for name in ("ece", "gap") if name in self.parts[0].report]  # two intervals fit 80 columns
        return f"{found} (p corrected for {len(self.parts)} groups)", [
            (self.column, "items", *metrics, "p (Holm)"),
            *(
                (g.name, f"{g.report.n:,}", *(brief(m, g.report[m]) for m in metrics), f"{g.p_holm:.2g}")
                for g in self.parts
            ),
        ]

    @property
    def worst(self) -> Subgroup | None:
        """The part with the largest gap among those that stand out; None if none does."""
        return max((g for g in self.parts if g.stands_out), key=lambda g: abs(g.gap), default=None)

    @property
    def largest(self) -> Subgroup:
        """The part with the largest gap, whether it stands out or not."""
        return max(self.parts, key=lambda g: abs(g.gap))

    def to_dict(self) -> dict[str, Any]:
        worst = None if self.worst is None else self.worst.name
        return {"column": self.column, "worst": worst, "groups": [g.to_dict() for g in self.parts]}


def subgroups(
    p: Predictions,
    part: Tensor,
    names: Sequence[str],
    column: str,
    metrics: Sequence[str] | None = None,
    *,
    about: About = "top",
    **options: Any,
) -> Subgroups:
    """The metrics of each part (None: the headline). `part` [N] holds indices into `names`; `options` are those of
    `evaluate`. The gap, by which parts are compared, is always among the metrics."""
    wanted = list(dict.fromkeys([*(metrics or HEADLINE), "gap"]))
    where = f"{p.source}: " if p.source else ""
    if not 2 <= len(names) <= MOST:
        raise InputError(f"{where}{column!r} has {len(names):,} different values; 2 to {MOST} are parts to compare")
    scores = reduce(p, classwise=False)
    scores = positive_class(scores) if about == "positive" else scores
    found = [_against_rest(scores, part == g) for g in range(len(names))]
    adjusted = holm({str(g): p_value for g, (_, p_value) in enumerate(found)})
    return Subgroups(
        column,
        tuple(
            Subgroup(
                name,
                evaluate_predictions(_taken(p, part == g), wanted, about=about, **options),
                *found[g],
                adjusted[str(g)],
            )
            for g, name in enumerate(names)
        ),
    )


def by_values(
    p: Predictions, by: Any, arrays: Mapping[str, Any], metrics: Sequence[str] | None, **options: Any
) -> Subgroups:
    """The subgroups for `evaluate(…, by=…)`, where `by` names a column of the table or holds one value per item.

    `arrays` are the arguments that `p` was made of, so that `by` is read like the labels (ignored pixels are dropped).
    """
    column = by if isinstance(by, str) else str(getattr(by, "name", None) or "group")
    table = is_table(arrays["data"])
    if isinstance(by, str) and not table:
        raise InputError(f"by={by!r} names a column of a table; beside anything else, pass one value per item")
    if isinstance(arrays["data"], Predictions) or (table and not isinstance(by, str)):
        part, names = numbered_groups(by, p.n)
    else:
        with warnings.catch_warnings():  # the first reading has shown them
            warnings.simplefilter("ignore", CalibrantWarning)
            found = given(**{**arrays, "group": by})
        part, names = found.group, found.group_names
    assert part is not None and names is not None
    return subgroups(p, part, names, column, metrics, **options)


def _against_rest(scores: Scores, inside: Tensor) -> tuple[float, float]:
    """(gap of the rest, p-value of the difference). Standard errors account for groups, and are never 0."""
    c = cells(inside.long(), scores.confidence, scores.correct, scores.group)  # cell 1 is the part, cell 0 the rest
    if c.factor is None:
        error = float(c.sd.square().sum().sqrt())
    else:
        rows = c.factor / c.mass[:, None]
        error = float((rows[1] - rows[0]).square().sum().sqrt())
    z = float(c.gap[1] - c.gap[0]) / max(error, 1e-12)
    return float(c.gap[0]), math.erfc(abs(z) / math.sqrt(2))


def _taken(p: Predictions, inside: Tensor) -> Predictions:
    """The items of a part; the groups that intervals resample are renumbered."""
    taken = p.take(inside.nonzero()[:, 0])
    if taken.group is None:
        return taken
    return replace(taken, group=torch.unique(taken.group, return_inverse=True)[1], group_names=None)
