"""Networks that others trained, as the units of a comparison: each is what a seed is among trainings of ours.

    pep/networks/cifar10_*      an experiment's name with a star: its units are the rows that it fits

A unit's numbers are the means over the halvings of its test set. Halvings measure a network better, but are no further
trainings: however many there are, a network is one unit. Their interval is Student's t, as over seeds. A sign test
needs more networks than there are: nine that all agree have p = 0.07 after Holm's correction over nineteen maps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from calibrant.bench.store import Cell
from calibrant.papers import experiments

Numbers = Mapping[str, Mapping[str, float | None]]
STAR = "*"


def over_networks(cells: Sequence[Cell], pattern: str) -> Iterator[Cell]:
    """A cell for each network that the pattern fits and that was measured; its seed is the network's place."""
    halvings: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        halvings[cell.experiment, cell.scale].append(cell)
    for place, row in enumerate(e.name for e in experiments(pattern)):
        for (name, _), found in halvings.items():
            if name == row:
                numbers = _mean([c.measured for c in found])
                yield replace(found[0], experiment=pattern, seed=place, settings={}, measured=numbers, intervals={})


def _mean(each: Sequence[Numbers]) -> Numbers:
    """Of the numbers that all have."""
    out: dict[str, dict[str, float | None]] = {}
    for variant, row in each[0].items():
        for metric in row:
            values = [v for numbers in each if (v := numbers.get(variant, {}).get(metric)) is not None]
            if len(values) == len(each):
                out.setdefault(variant, {})[metric] = fmean(values)
    return out
