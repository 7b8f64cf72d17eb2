"""Summarise what our cells say about every claim of the five papers: the verdict, the count behind it, the numbers
and the cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.bench.reproduction import Judged, gpu_minutes, judged
from calibrant.bench.store import Cell
from calibrant.bench.table_text import difference, of_group
from calibrant.bench.verdict import Word
from calibrant.papers import PAPERS
from calibrant.papers.reported import CLAIMS, Claim
from calibrant.report.comparison import signed
from calibrant.report.numbers import metric_of

JUDGED: tuple[Word, ...] = ("reproduced", "direction only", "not reproduced", "inconclusive")
UNJUDGED: dict[Word, str] = {"other scale": "at another scale", "single run": "with a single run"}


@dataclass(frozen=True)
class Summary:
    """A claim of a paper, and the comparisons that judge it."""

    claim: Claim
    found: tuple[Judged, ...]

    @property
    def paper(self) -> str:
        return self.claim.name.split("/")[0]

    @property
    def cells(self) -> list[Cell]:
        return [c for j in self.found for c in j.cells]

    @property
    def minutes(self) -> float:
        return gpu_minutes(self.cells)

    @property
    def word(self) -> str:
        """The verdict that all judged comparisons share, or `mixed`; without a judged one, what has run so far."""
        words = {j.verdict.word for j in self.found}
        verdicts = [w for w in JUDGED if w in words]
        if verdicts:
            return verdicts[0] if len(verdicts) == 1 else "mixed"
        return next((w for w in ("other scale", "single run") if w in words), "not run")

    @property
    def count(self) -> str:
        """How many comparisons have each verdict: `3 reproduced, 6 at another scale (4 as in the paper, 2 open)`."""
        words = Counter(j.verdict.word for j in self.found)
        parts = [f"{words[w]} {w}" for w in JUDGED if words[w]]
        for word, title in UNJUDGED.items():
            leanings = Counter(j.verdict.leaning for j in self.found if j.verdict.word == word)
            if leanings:
                each = ", ".join(f"{n} {leaning}" for leaning, n in sorted(leanings.items()))
                parts.append(f"{words[word]} {title} ({each})")
        return ", ".join([*parts, *([f"{words['not run']} not run"] if words["not run"] else [])])

    @property
    def number(self) -> str:
        """The range of the measured differences: `nll −0.1249 to −0.0017 (paper −0.0850 to −0.0020)`."""
        run = [j for j in self.found if j.verdict.mean is not None]
        out = []
        for metric in dict.fromkeys(j.pair.metric for j in run):
            here = [j for j in run if j.pair.metric == metric]
            paper = {j.pair.reported for j in here if j.pair.reported is not None}
            ours = _span(metric, {j.verdict.mean for j in here if j.verdict.mean is not None})
            theirs = f"paper {_span(metric, paper)}" if paper else f"paper: {_reported(here[0])}"
            out.append(f"{metric} {ours} ({theirs})")
        return "; ".join(out)

    @property
    def caveats(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c for j in self.found for c in j.caveats))


def summaries(cells: Sequence[Cell]) -> list[Summary]:
    """The summary of every claim, in the order of the papers."""
    return [Summary(claim, tuple(judged(claim, cells))) for claim in CLAIMS.values()]


def by_paper(found: Sequence[Summary]) -> dict[str, list[Summary]]:
    """The title of each paper → the summaries of its claims."""
    return {PAPERS[name].title: [s for s in found if s.paper == name] for name in dict.fromkeys(s.paper for s in found)}


HEAD = ("comparison", "metric", "paper", "measured", "seeds", "verdict", "cell")


def rows(summary: Summary) -> list[tuple[str, ...]]:
    """The comparisons of a claim as rows of text, with the columns of `HEAD`; differences are method minus baseline."""
    return [
        (
            f"{j.pair.label}{of_group(j.group)}",
            j.pair.metric,
            _reported(j),
            difference(j.pair.metric, j.verdict) or "–",
            str(j.verdict.seeds or ""),
            j.verdict.word
            + (f", {j.verdict.leaning}" if j.verdict.word == "other scale" and j.verdict.leaning else ""),
            j.pair.method.experiment,
        )
        for j in summary.found
    ]


def _span(metric: str, values: set[float]) -> str:
    ends = [signed(metric_of(metric), v) for v in (min(values), max(values))]
    return ends[0] if len(values) == 1 else f"{ends[0].removesuffix(' pp')} to {ends[1]}"


def _reported(found: Judged) -> str:
    if found.pair.reported is None:
        return "higher" if found.pair.sign > 0 else "lower"
    return signed(metric_of(found.pair.metric), found.pair.reported)
