"""The papers' experiments, and what the papers report. Each row of a table is an `Experiment` that `bench` measures."""

from __future__ import annotations

from fnmatch import fnmatchcase

from calibrant.errors import suggest_names, unknown
from calibrant.papers import ar, ds, pep, rc, scorecard, ss
from calibrant.papers.experiment import AS_TRAINED, SCALES, Experiment, Paper, Scale

PAPERS: dict[str, Paper] = {p.PAPER.name: p.PAPER for p in (pep, ss, ar, rc, ds, scorecard)}
"""Name → paper; the scorecard, whose rows are run in the same way, is one too."""


def experiments(pattern: str) -> list[Experiment]:
    """Every experiment under `PAPER`, `PAPER/TABLE` or `PAPER/TABLE/ROW`; stars stand for any characters."""
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
