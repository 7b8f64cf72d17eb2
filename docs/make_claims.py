"""`python -m docs.make_claims` writes docs/claims.md and a page per paper from the cells in results/; a test compares.

The remarks at the end of a paper's page are written by hand, in results/notes/.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calibrant.bench import verdict
from calibrant.bench.claims import HEAD, Summary, rows, summaries
from calibrant.bench.reproduction import gpu_minutes
from calibrant.bench.store import Store
from calibrant.papers import PAPERS

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
ANCHOR = "the-rule"


def pages() -> dict[str, str]:
    """Name of the file → its text."""
    found = summaries(list(Store(RESULTS).cells()))
    each = {f"claims_{name}.md": paper(name, [s for s in found if s.paper == name]) for name in PAPERS}
    return {"claims.md": front(found), **each}


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
    for name, about in PAPERS.items():
        lines += [f"## [{about.title}](claims_{name}.md)", "", "| claim | verdict | comparisons |", "|---|---|---|"]
        lines += [f"| {s.claim.says} | **{s.word}** | {s.count} |" for s in found if s.paper == name]
        lines.append("")
    _, _, rule = (verdict.__doc__ or "").partition("\n\n")
    return "\n".join([*lines, "## The rule", "", rule])


def paper(name: str, found: Sequence[Summary]) -> str:
    lines = [
        f"# {PAPERS[name].title}",
        "",
        "What our cells say about its claims. Numbers are differences, method minus baseline, over seeds; the "
        f"verdicts follow [one rule](claims.md#{ANCHOR}). Made by `python -m docs.make_claims`.",
        "",
    ]
    for s in found:
        lines += [f"## {s.claim.says}", "", f"> {s.claim.words}", ">", f"> {s.claim.where}", ""]
        lines += [f"**{s.word}**: {s.count}." + (f" Measured: {s.number}." if s.number else ""), ""]
        run = [row for row, j in zip(rows(s), s.found, strict=True) if j.group is not None]
        if run:
            lines += [_line(HEAD), "|---" * len(HEAD) + "|", *(_line((*r[:-1], f"`{r[-1]}`")) for r in run), ""]
        if s.caveats:
            lines += ["To know of these numbers: " + "; ".join(s.caveats) + ".", ""]
        if s.minutes:
            lines += [f"Cost: {s.minutes:.1f} GPU minutes.", ""]
    notes = RESULTS / "notes" / f"{name}.md"
    if notes.is_file():
        lines += ["## Remarks of those who ran it", "", notes.read_text("utf-8")]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", r"\|") for c in cells) + " |"


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, "utf-8")
        print(f"wrote {name}")
