"""The papers' experiments and what they report. A row of a table is one `Experiment`; `calibrant bench` measures it."""

from __future__ import annotations

from fnmatch import fnmatchcase

from calibrant.errors import suggest_names, unknown
from calibrant.papers import ar, ds, pep, rc, scorecard, ss
from calibrant.papers.experiment import AS_TRAINED, SCALES, Experiment, Paper, Scale

PAPERS: dict[str, Paper] = {p.PAPER.name: p.PAPER for p in (pep, ss, ar, rc, ds, scorecard)}
"""Name → paper; and the scorecard, whose rows are run and kept in the same way."""


def experiments(pattern: str) -> list[Experiment]:
    """`PAPER`, `PAPER/TABLE` or `PAPER/TABLE/ROW`, with stars for any letters: every experiment under it."""
    paper, *rest = pattern.strip("/").split("/")
    if paper not in PAPERS:
        raise unknown("paper", paper, PAPERS)
    everything = PAPERS[paper].experiments
    found = [e for e in everything if len(rest) <= 2 and all(map(fnmatchcase, (e.table, e.row), rest))]
    if not found:
        names = {"/".join(e.name.split("/")[: len(rest) + 1]) for e in everything}
        raise unknown("experiment", pattern, names)
    return found


__all__ = ["AS_TRAINED", "PAPERS", "SCALES", "Experiment", "Paper", "Scale", "experiments"]

suggest_names(__name__)
