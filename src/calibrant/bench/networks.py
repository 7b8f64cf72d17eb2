"""Networks that others trained as the units of a comparison, in the place of seeds.

    pep/networks/cifar10_*      a name with a star: each row that matches it is a unit

The numbers of a unit are means over the halvings of its test set. More halvings measure a network better, but they are
not further trainings, so a network is one unit however many there are. The interval over networks is Student's t, as
over seeds. A sign test would need more networks than we have: nine that all agree have p = 0.07 after Holm's
correction over nineteen maps.
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
    """Yield one cell per measured network that matches the pattern; its seed is the network's position in the list."""
    halvings: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        halvings[cell.experiment, cell.scale].append(cell)
    for position, row in enumerate(e.name for e in experiments(pattern)):
        for (name, _), found in halvings.items():
            if name == row:
                numbers = _mean([c.measured for c in found])
                yield replace(found[0], experiment=pattern, seed=position, settings={}, measured=numbers, intervals={})


def _mean(each: Sequence[Numbers]) -> Numbers:
    """The mean of every number that all of them have."""
    out: dict[str, dict[str, float | None]] = {}
    for variant, row in each[0].items():
        for metric in row:
            values = [v for numbers in each if (v := numbers.get(variant, {}).get(metric)) is not None]
            if len(values) == len(each):
                out.setdefault(variant, {})[metric] = fmean(values)
    return out
