"""`python -m docs.make_claims` writes docs/claims.md, a page per paper, its figures and docs/cost.md from results/.

A test checks that the pages are up to date. The remarks at the end of a paper's page come from results/notes/.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calibrant.bench import verdict
from calibrant.bench.claims import HEAD, Summary, rows, summaries
from calibrant.bench.claims_page import forest
from calibrant.bench.place import Place
from calibrant.bench.plan import GPUS, plan, wall
from calibrant.bench.reproduction import gpu_minutes
from calibrant.bench.store import Cell, Store
from calibrant.papers import PAPERS, experiments

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
ANCHOR = "the-rule"
SEEDS = 3


def pages() -> dict[str, str]:
    """File name → text."""
    cells = list(Store(RESULTS).cells())
    found = summaries(cells)
    each = {
        f"claims_{name}.md": paper(name, [s for s in found if s.paper == name])
        for name in dict.fromkeys(s.paper for s in found)
    }
    return {"claims.md": front(found), **each, "cost.md": cost(cells)}


def front(found: Sequence[Summary]) -> str:
    used = {c.key: c for s in found for c in s.cells}.values()
    lines = [
        "# Do the five papers hold?",
        "",
        f"Made by `python -m docs.make_claims` from {len(used)} measurements in `results/` ({gpu_minutes(used):.0f} "
        "minutes of GPU). `calibrant bench show PAPER/TABLE` prints the numbers behind a line, with every caveat, and "
        "`calibrant bench report -o claims.html` makes one page with figures.",
        "",
    ]
    for name in dict.fromkeys(s.paper for s in found):
        lines += [
            f"## [{PAPERS[name].title}](claims_{name}.md)",
            "",
            "| claim | verdict | comparisons |",
            "|---|---|---|",
        ]
        lines += [f"| {s.claim.says} | **{s.word}** | {s.count} |" for s in found if s.paper == name]
        lines.append("")
    _, _, rule = (verdict.__doc__ or "").partition("\n\n")
    return "\n".join([*lines, "## The rule", "", rule])


def paper(name: str, found: Sequence[Summary]) -> str:
    lines = [
        f"# {PAPERS[name].title}",
        "",
        "What our cells say about its claims. Numbers are differences, method minus baseline, over seeds. The "
        f"verdicts follow [one rule](claims.md#{ANCHOR}). In the figures a dot is our difference with its interval, a "
        "diamond the paper's. Made by `python -m docs.make_claims`.",
        "",
    ]
    for s in found:
        lines += [f"## {s.claim.says}", "", f"> {s.claim.words}", ">", f"> {s.claim.where}", ""]
        lines += [f"**{s.word}**: {s.count}." + (f" Measured: {s.number}." if s.number else ""), ""]
        run = [row for row, j in zip(rows(s), s.found, strict=True) if j.group is not None]
        if run:
            lines += [f"![{s.claim.says}](figures/{_figure(s)})", ""]
            lines += [_line(HEAD), "|---" * len(HEAD) + "|", *(_line((*r[:-1], f"`{r[-1]}`")) for r in run), ""]
        if s.caveats:
            lines += ["Caveats: " + "; ".join(s.caveats) + ".", ""]
        if s.minutes:
            lines += [f"Cost: {s.minutes:.1f} GPU minutes.", ""]
    notes = RESULTS / "notes" / f"{name}.md"
    if notes.is_file():
        lines += ["## Remarks", "", notes.read_text("utf-8")]
    return "\n".join(lines).rstrip() + "\n"


def draw(found: Sequence[Summary]) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "calibrant", "svg.fonttype": "none"}):
        for s in found:
            axes = forest(s)
            if axes:
                axes.get_figure(root=True).savefig(DOCS / "figures" / _figure(s), metadata={"Date": None})


def _figure(summary: Summary) -> str:
    return f"claim-{summary.claim.name.replace('/', '-')}.svg"


def cost(cells: Sequence[Cell]) -> str:
    heads = ("table", "trainings", "without a pace", *(f"minutes on {g} GPU{'s' * (g > 1)}" for g in GPUS))
    lines = [
        "# What the papers' tables cost",
        "",
        f"The trainings that `calibrant bench run PAPER/TABLE --seeds {SEEDS}` needs and that are not in `results/`, "
        "with their time at the median pace of the cells there (one H200). `calibrant bench plan` prints it row by "
        "row. A training is not split over GPUs. Networks that were never trained here have no pace: their trainings "
        "are counted, their minutes are not. Cells that did not record how many ran beside them count in full, so "
        "the minutes are upper bounds. Made by `python -m docs.make_claims`.",
        "",
        _line(heads),
        "|---" * len(heads) + "|",
    ]
    for table in dict.fromkeys(f"{e.paper}/{e.table}" for p in PAPERS.values() for e in p.experiments):
        costs = plan(experiments(table), cells, SEEDS, "paper", Place(RESULTS, RESULTS / "no-runs"))
        unknown = sum(c.unpaced for c in costs)
        known = any(c.total for c in costs)
        times = (f"{max(1, wall(costs, g)):.0f}" if known else "–" for g in GPUS)
        lines.append(_line((f"`{table}`", str(sum(c.trainings for c in costs)), str(unknown or ""), *times)))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", r"\|") for c in cells) + " |"


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, "utf-8")
        print(f"wrote {name}")
    draw(summaries(list(Store(RESULTS).cells())))
