"""`python -m docs.make_scorecard` makes docs/scorecard.md and what ships for `calibrant advise` from results/."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from calibrant.bench import evidence
from calibrant.bench.store import Store
from calibrant.cli.advise import cells_of
from calibrant.papers import experiments
from calibrant.papers.comparisons import METHODS
from calibrant.report import advice
from calibrant.report.plots.style import COLOURS, SERIES, dress

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
SHIPPED = DOCS.parent / "src" / "calibrant" / "report" / advice.FILE
FIGURE = "figures/scorecard.svg"
MARKERS = "osD^vP*X"


def shipped() -> str:
    """The evidence as JSON, one row per line."""
    rows = [json.dumps(r.plain(), ensure_ascii=False) for r in evidence.evidence(list(Store(RESULTS).cells()))]
    methods = [f"{json.dumps(name)}: {json.dumps(asdict(m), ensure_ascii=False)}" for name, m in METHODS.items()]
    return '{"methods": {\n ' + ",\n ".join(methods) + '\n},\n"rows": [\n ' + ",\n ".join(rows) + "\n]}\n"


def page(source: Mapping[str, Any]) -> str:
    networks = {row["where"]: bool(row["caveat"]) for row in source["rows"]}
    groups = sum(networks.values())
    found = {s: advice.options(s, source) for s in advice.situations()}
    every = list(found.values())[-1]
    lines = [
        "# What should I use?",
        "",
        *(f"- **{s.says}.** {advice.sentence(options)}" for s, options in found.items()),
        "",
        f"These answers count what each method did on {len(networks) - groups} networks that we trained and {groups} "
        "groups of networks that others trained. Each method is compared with the plain network of the same data and "
        "schedule, seed by seed. In a group, each network takes the place of a seed, and the group counts as one "
        "network.",
        "",
        "`calibrant advise` prints this answer, for what you may do. `calibrant advise METHOD` prints one method, "
        "network by network, with every caveat. [The race](race.md) compares our maps with those of other libraries, "
        "file by file.",
        "",
        "## Every method",
        "",
        *_table(advice.HEAD, [_option(o) for o in every]),
        *(f"- {note}" for note in advice.NOTES),
        "",
        "## Calibration against refinement",
        "",
        "Each point is a method on one network with three seeds or more. Lower is a lower NLL, further right is a "
        "better ranking of errors. The NLL is that of the method as trained, without temperature scaling.",
        "",
        f"![NLL against AUROC, method by method]({FIGURE})",
        "",
        "## Every method on one network",
        "",
        *_one_network(source),
        "## Network by network",
        "",
        "Differences from the plain network. A star marks what is beyond noise, after Holm's correction over the "
        "methods of the network. Below five seeds, the variance is pooled over these methods. A schedule such as "
        "`20of200` is 20 of the paper's 200 epochs.",
        "",
    ]
    for where in networks:
        rows = [row for row in source["rows"] if row["where"] == where]
        about = f"{rows[0]['scale']} schedule" + (f", {rows[0]['settings']}" if rows[0]["settings"] else "")
        about = f"{about[0].upper()}{about[1:]}{'; ' + rows[0]['caveat'] if rows[0]['caveat'] else ''}."
        shown = [(source["methods"][r["method"]]["title"], str(r["seeds"]), *cells_of(r["values"])) for r in rows]
        heads = ("method", "seeds", "NLL", "ECE, points", "AUROC, points", "NLL, both scaled", "NLL over corruptions")
        lines += [f"### {where}", "", about, "", *_table(heads, shown)]
    notes = (RESULTS / "notes" / "scorecard.md").read_text("utf-8").strip()
    made = "`python -m docs.make_scorecard` makes this page from `results/`."
    return "\n".join([*lines, "## Notes on the measurements", "", notes, "", made, ""])


def _option(o: advice.Option) -> tuple[str, ...]:
    title, *numbers = advice.line(o)
    return (f"**{title}**" if o.recommended else title, *numbers)


def _one_network(source: Mapping[str, Any]) -> list[str]:
    wanted = {e.name for e in experiments("scorecard/cifar100")}
    done = {row["cells"][0] for row in source["rows"]} & wanted
    return [
        f"ResNet-18 on CIFAR-100, 200 epochs, three seeds: `calibrant bench run scorecard/cifar100`. {len(done)} of "
        f"{len(wanted)} rows are measured.",
        "",
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [*(f"| {' | '.join(r)} |" for r in (heads, ["---"] * len(heads), *rows)), ""]


def draw(source: Mapping[str, Any]) -> Figure:
    """One point per method and network."""
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    ax = dress(figure.add_subplot())
    at: dict[str, list[tuple[float, float]]] = {}
    for row in source["rows"]:
        nll, auroc = row["values"]["nll"], row["values"].get("auroc")
        if auroc and "few seeds" not in (nll["word"], auroc["word"]):
            point = (100 * auroc["mean"], 100 * nll["mean"] / nll["baseline"])
            title = source["methods"][row["method"]]["title"]
            at.setdefault("other maps" if title.endswith(" map") else title, []).append(point)
    for i, (title, points) in enumerate(at.items()):
        look = {"color": COLOURS[SERIES[i % len(SERIES)]], "marker": MARKERS[i // len(SERIES) % len(MARKERS)]}
        ax.scatter(*zip(*points, strict=True), s=34, alpha=0.85, label=title, linewidths=0, **look)
    for line in (ax.axhline, ax.axvline):
        line(0, color=COLOURS["muted"], linewidth=1)
    ax.set(xlabel="AUROC, points more than the plain network", ylabel="NLL, % more", xscale="symlog", yscale="linear")
    ax.set_xticks([-20, -10, -5, -2, -1, 0, 1, 2, 5])
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.legend(frameon=False, fontsize=8, labelcolor=COLOURS["muted"], loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def main() -> None:
    import matplotlib

    text = shipped()
    SHIPPED.write_text(text, "utf-8")
    (DOCS / "scorecard.md").write_text(page(json.loads(text)), "utf-8")
    with matplotlib.rc_context({"svg.hashsalt": "calibrant"}):
        draw(json.loads(text)).savefig(DOCS / FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
