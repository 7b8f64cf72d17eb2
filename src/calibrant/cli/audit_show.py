"""Shows what `audit` found, in the terminal and as an HTML report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import calibrant.provenance as provenance
from calibrant.cli.audit_inputs import FEWEST, Audited, Options
from calibrant.display import HEADLINE
from calibrant.metrics.intervals import caveats_line
from calibrant.metrics.stream_report import bounds_line
from calibrant.types import Report

if TYPE_CHECKING:
    from calibrant.decisions.judge import Judgement
    from calibrant.metrics.subgroups import Subgroups
    from calibrant.posthoc.advise import Advice


def page(found: Sequence[Audited], compared: Sequence[Any], advice: Advice | None, o: Options) -> str:
    """The HTML of the report."""
    from calibrant.report import html
    from calibrant.report.groups import group_panel

    parts = [
        html.Audit.of(a.predictions, a.report, notes=a.notes)
        if a.predictions is not None
        else html.Audit(a.report.file or "stream", a.report, sums=a.sums, notes=a.notes)
        for a in found
    ]
    file = [a.report.file if len(found) > 1 else None for a in found]
    panels = [group_panel(a.by, f, o.names or HEADLINE) for a, f in zip(found, file, strict=True) if a.by is not None]
    if any(a.rule is not None for a in found):
        from calibrant.report import rule

        panels += [rule.panel(a.rule, a.report.file) for a in found if a.rule is not None]
    return html.render(
        parts,
        command=provenance.command(),
        comparisons=compared,
        advice=advice,
        panels=panels,
        **_before_and_after(advice, o),
    )


def _before_and_after(advice: Advice | None, o: Options) -> dict[str, Any]:
    """The audits before and after the recommended map, as arguments of `html.render`."""
    if advice is None or advice.before is None or advice.after is None:
        return {}
    from calibrant.metrics.evaluate import evaluate
    from calibrant.report import html

    named = {"before": (advice.before, f"before {advice.chosen}"), "after": (advice.after, f"after {advice.chosen}")}
    return {side: html.Audit.of(p, evaluate(p, **o.judging), name) for side, (p, name) in named.items()}


def show(
    found: Sequence[Audited], compared: Sequence[Any], advice: Advice | None, html: Path | None, shown: Sequence[str]
) -> None:
    """Print everything, in the order of the questions: how good, for whom, better than what, what next."""
    from calibrant.cli.layout import Console
    from calibrant.report import terminal

    console = Console()
    for each in found:
        alone = len(found) == 1
        console.print(terminal.audit(each.report, shown) if alone else terminal.verdict_line(each.report))
        lines = [caveats_line(each.report), conventions_line(each.report), bounds_line(each.report)]
        if alone and len(shown) < len(each.report):
            lines.append(f"{len(each.report) - len(shown)} more metrics: --all")
        console.print("\n".join(line for line in lines if line), style="dim", highlight=False, markup=False)
        for note in each.notes:
            console.say(f"note: {note}")
        console.print()
        if each.by is not None:
            _show_groups(console, each.by, shown)
        if each.plan is not None:
            _show_plan(console, each.report, each.plan, shown)
    if len(found) > 1:
        console.print(terminal.side_by_side([a.report for a in found], shown))
        console.print()
    for comparison in compared:
        console.print(terminal.compare_table(comparison, shown))
        console.print()
    for each in found:
        if each.rule is not None:
            _show_rule(console, each.rule)
    if advice is not None:
        _show_advice(console, advice)
    if html is not None:
        console.say(f"the report, for a browser: {html}")
    for each in found:
        why, command = next_line(each, advice, html)
        console.say(why)
        if command is not None:
            console.say(f"next: {as_read(command, each)}")


def _show_groups(console: Any, found: Subgroups, shown: Sequence[str]) -> None:
    """Print the groups with four metrics, which fit 80 columns; JSON and the report have the others."""
    from calibrant.report import groups, terminal

    names = [n for n in shown if n in found.parts[0].report and n not in ("nll", "brier")] or list(shown)
    console.print(terminal.text_table(groups.table(found, names[:4], groups.narrow)))
    console.say(groups.EACH, "dim")
    console.say(groups.sentence(found), "bold")
    console.print()


def _show_rule(console: Any, judgement: Judgement) -> None:
    from calibrant.report import rule, terminal

    console.say(f"rule  {judgement.sentence}")
    if judgement.reused:
        console.say(rule.REUSED, style="bold red")
    for table in rule.tables(judgement):
        console.print(terminal.text_table(table))
    console.print()


def _show_advice(console: Any, advice: Advice) -> None:
    """Print the table of maps and the recommendation."""
    from calibrant.report import terminal
    from calibrant.report.panels import Table

    rows = [
        {"": row["method"].replace("+", " + ")}
        | {name: (row[name]["value"] if row[name] else None) for name in ("nll", "ece", "brier", "auroc", "accuracy")}
        | {"verdict": row.get("nll verdict")}
        for row in advice.rows
    ]
    chosen = next((i for i, row in enumerate(advice.rows) if row["method"] == advice.chosen), None)
    console.print(terminal.text_table(Table.of("", rows, chosen)))
    console.say(advice.how, "dim")
    console.say(advice.sentence, "bold")
    console.print()


def _show_plan(console: Any, report: Report, found: dict[str, Any], shown: Sequence[str]) -> None:
    from calibrant.report import terminal
    from calibrant.report.panels import Table

    width = found["width"]
    rows = []
    for name in shown:
        e, n = report[name], found["items"][name]
        now = None if e.low is None or e.high is None else f"{e.high - e.low:.4f}"
        rows.append({"metric": name, "width now": now, f"items for {width:g}": None if n is None else f"{n:,}"})
    console.print(terminal.text_table(Table.of("", rows)))
    console.say(f"items for a 95% interval of that width, if new ones are like these {report.n:,}", "dim")
    console.print()


def as_read(command: str, each: Audited) -> str:
    """The command with the options that this one reads its files with."""
    labels = each.reading.labels
    same = labels is not None and str(each.report.file) in shlex.split(command)
    return command + each.reading.words + (f" --labels {shlex.quote(str(labels))}" if same else "")


def next_line(each: Audited, advice: Advice | None, html: Path | None) -> tuple[str, str | None]:
    """What to do next, in words, and the command to paste, without a comment, which zsh would not accept."""
    from calibrant.report.steps import CALIBRATION, next_steps

    step = next_steps(each.report, advice)[0]
    file = shlex.quote(each.report.file or "PREDICTIONS")
    if advice is not None and advice.command is not None:
        other = "; CALIBRATION: predictions on other items" if CALIBRATION in advice.command else ""
        return f"The map that repairs it best{other}", advice.command
    report = None if html is not None else f"calibrant audit {file} --html report.html"
    if step.command is None:
        return step.title, report
    splits = advice is None and each.predictions is not None and each.predictions.logits is not None
    if CALIBRATION in step.command and splits and each.report.n >= FEWEST:
        return "Which map would repair it?", f"calibrant audit {file} --advise"
    if each.reading.labels is not None and file not in step.command and CALIBRATION not in step.command:
        return step.title, report  # the labels of the other file are not known
    return step.title, step.command


def conventions_line(report: Report) -> str:
    """The conventions behind the numbers, in one line."""
    c = report.conventions
    about = f"confidence in the {c['about']}"
    if report.k == 2 and c["about"] == "top label":
        about += " (--about positive for class 1)"
    classes = f"{report.k} classes" if report.k else "top-1 only"
    if "classes" in c:  # their names, in order
        classes += f": {c['classes']}"
    parts = [f"{report.n:,} items", classes, about, f"split {c['split']}", f"{c['bins']} right-closed bins"]
    parts += ["Brier summed over classes", "sums in float64"]
    if "allow_reuse" in c:
        parts.append("--allow-reuse: the map was fitted on these items, so the numbers flatter it")
    return " · ".join(parts)
