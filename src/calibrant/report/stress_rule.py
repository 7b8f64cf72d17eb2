"""A rule under shift: judged on every cell, from the stored logits, and compared with its promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from calibrant.decisions import Judgement, Rule, judge
from calibrant.decisions.rule import floor, percent
from calibrant.diagnostics.stress.analysis import predictions_of
from calibrant.diagnostics.stress.cells import Cell
from calibrant.diagnostics.stress.store import Arrays
from calibrant.display import aligned
from calibrant.errors import InputError, SplitError
from calibrant.functional.inputs import predictions
from calibrant.report.numbers import DASH, short
from calibrant.report.panels import Panel, Table
from calibrant.report.rule import CALLED, COUNTED
from calibrant.shifts.frequency import FREQUENCIES
from calibrant.types import Predictions, Split

JUDGED = ("clean", "natural", "corruption", "frequency", "perturbation")
"""Kinds of cells whose items have a label."""
COLUMNS = {"sets": ("coverage", "set_size"), "costs": ("cost", "saved")}
"""Kind of rule → the estimates that are shown; `ACCEPTED` for all other kinds."""
ACCEPTED = ("accepted", "accuracy_accepted")
KEPT = {
    True: "which breaks the promise",
    False: "in line with the promise",
    None: "measured on items instead of groups, so without a verdict on the promise",
}
SAID = {"accuracy_accepted": "of the accepted are right", "coverage": "of sets hold the truth"}


def check_rule(rule: Rule | None, k: int) -> None:
    """Refuse a rule that cannot decide about this model's logits, before anything is written."""
    if rule is None:
        return
    if rule.by == "group":
        raise InputError("the rule is by group, and stressed items have no groups; choose one without groups")
    rule(torch.zeros(1, k))


def items_of(arrays: Arrays, raw: bool) -> Predictions:
    """Return the items of a cell; each frame of a sequence [N, T, K] is an item, and its sequence is its group."""
    z, labels = arrays["logits"], arrays["labels"]
    if z.ndim == 2:
        return predictions_of(arrays, raw, None)
    group = torch.arange(len(z)).repeat_interleave(z.shape[1])
    return predictions(z.flatten(0, 1), labels[group], group=group, raw=raw, split=Split.TEST)


@dataclass(frozen=True)
class RuleUnderShift:
    """The rule, and how it did on the clean items and under each shift."""

    rule: Rule
    cells: Mapping[Cell, Judgement]

    @classmethod
    def of(cls, rule: Rule, cells: Mapping[Cell, Arrays], raw: bool) -> RuleUnderShift:
        said = {c: items_of(arrays, raw) for c, arrays in cells.items() if c.kind in JUDGED}
        try:
            return cls(rule, {c: judge(rule, p) for c, p in said.items()})
        except SplitError as error:
            raise SplitError("the rule was chosen on the items that are stressed; choose it on other items") from error

    def sentence(self) -> str:
        """Say how the promise holds on clean items, and which shift breaks it most."""
        clean = self.cells[Cell("clean")]
        if clean.promise is None:
            if "loss_accepted" not in clean.estimates:
                return "This rule promises no accuracy or coverage that shifted items could break."
            if clean.broken is None:
                return f"On clean data {clean.sentence}."
            over = sum(j.broken is True for j in self.cells.values())
            return f"On clean data {clean.sentence}. It is broken on {over} of {len(self.cells)} sets of items."
        about, promised = clean.promise
        seen = {c: e.value for c, j in self.cells.items() if (e := j.estimates[about]).value is not None}
        on_clean = f"{percent(seen[Cell('clean')])} {SAID[about]}" if Cell("clean") in seen else "nothing is accepted"
        said = f"On clean data {on_clean}, {KEPT[clean.broken]} of {floor(promised)}."
        shifted = [c for c in self.cells if c.kind != "clean"]
        broken = [c for c in shifted if self.cells[c].broken]
        if broken:
            worst = min(broken, key=lambda c: seen[c])
            said += f" It is broken under {len(broken)} of {len(shifted)} shifts; under {_called(worst)}, "
            said += f"{percent(seen[worst])} {SAID[about]}."
        elif any(self.cells[c].broken is False for c in shifted):
            said += f" None of the {len(shifted)} shifts contradicts it."
        idle = sum(c not in seen for c in shifted)
        return f"{said} Under {idle} of the shifts nothing is accepted." if idle else said

    def text(self) -> str:
        """Return a table for the terminal: each type at its highest severity, and where the promise first breaks."""
        rows = [["rule, at the highest severity", *self._titles(), "promise broken from severity"]]
        for shift in dict.fromkeys(_name(c) for c in self.cells):
            cells = [c for c in self.cells if _name(c) == shift]
            broken = [str(c.severity) if c.kind == "corruption" else "yes" for c in cells if self.cells[c].broken]
            first = min(broken, default=DASH)
            rows.append([shift, *self._row(max(cells, key=lambda c: c.severity)), first])
        return "\n".join([f"rule: {self.rule.sentence}", *aligned(rows, numbers=True), self.sentence()])

    def panel(self) -> Panel:
        """Return the panel for the HTML report, with every cell."""
        rows = [[_called(c), *self._row(c), "broken" if j.broken else DASH] for c, j in self.cells.items()]
        head = ["items", *self._titles(), "promise"]
        notes = [
            f"The rule: {self.rule.sentence}.",
            "A promise holds for items drawn like those the rule was chosen on; it counts as broken where so few hits "
            "would be rarer than 2.5% if it were kept.",
        ]
        table = Table("The rule on each set, with 95% intervals", head, rows)
        return Panel("What becomes of the rule's promise?", self.sentence(), tables=[table], notes=notes)

    def to_dict(self) -> dict[str, Any]:
        promise = self.cells[Cell("clean")].promise
        return {
            "rule": self.rule.to_dict(),
            "sentence": self.sentence(),
            "promised": None if promise is None else {promise[0]: promise[1]},
            "cells": {
                c.key: {name: e.to_dict() for name, e in j.estimates.items()} | {"broken": j.broken}
                for c, j in self.cells.items()
            },
        }

    def _titles(self) -> list[str]:
        return [CALLED[name] for name in COLUMNS.get(self.rule.kind, ACCEPTED)]

    def _row(self, cell: Cell) -> list[str]:
        estimates = self.cells[cell].estimates
        return [short(estimates[name], name not in COUNTED) for name in COLUMNS.get(self.rule.kind, ACCEPTED)]


def _called(cell: Cell) -> str:
    return f"{_name(cell)} at severity {cell.severity}" if cell.kind == "corruption" else _name(cell)


def _name(cell: Cell) -> str:
    if cell.kind == "frequency":
        return f"noise of frequency {FREQUENCIES[cell.severity - 1]:.2f}"
    name = (cell.name or cell.kind).replace("_", " ")
    return f"{name} (sequence)" if cell.kind == "perturbation" else name
