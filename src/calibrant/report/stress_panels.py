"""A stress run as sections of the HTML report: heat maps, what breaks first, calibrators under shift, foreign items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from calibrant.diagnostics.stress.analysis import AS_IT_IS, TOLERANCE, Outcome
from calibrant.report.numbers import DASH, percent, short
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.shift import entropy_histograms, frequency_curve, severity_curves
from calibrant.report.stress_report import StressReport
from calibrant.types import Estimate

HEADS = ("error", "NLL", "ECE", "AUROC")
MAPS = (
    ("accuracy", "Accuracy, in percent: the stronger the red, the worse"),
    ("ece", "ECE, in percent: how far confidence is from accuracy"),
    ("nll", "Negative log-likelihood"),
    ("auroc", "AUROC, in percent: does confidence still rank errors below correct answers"),
)


def panels(report: StressReport) -> list[Panel]:
    """The sections for what this run has measured."""
    o = report.outcome
    made = [
        _corruptions(report) if o.corruptions is not None else None,
        _calibrators(o) if len(o.calibrators) > 1 else None,
        None if report.rule is None else report.rule.panel(),
        _natural(o) if o.natural else None,
        _foreign(o) if o.ood else None,
        _steady(o) if o.perturbations else None,
        _frequency(o) if o.frequency else None,
    ]
    there = [panel for panel in made if panel is not None]
    said = [
        note for note in o.notes if note.split(":")[0] not in o.ood
    ]  # notes on a foreign set are in its own section
    return [replace(panel, notes=(*panel.notes, *said)) if i == 0 else panel for i, panel in enumerate(there)]


def _corruptions(report: StressReport) -> Panel:
    found = report.outcome.corruptions
    assert found is not None
    worst = max(found.by_severity)
    last = found.by_severity[worst]
    clean = report.outcome.clean
    lead = (
        f"{report.first_to_break()} At severity {worst}, averaged over {len(found.by_type)} types, "
        f"the error is {short(last['error'])} and ECE {short(last['ece'])}; clean: "
        f"{percent(1 - (clean['accuracy'].value or 0))} and {percent(clean['ece'].value)}."
    )
    names = ("error", "nll", "ece", "auroc")
    severities = [
        [str(s), *(short(row.get(name), name != "nll") for name in names)] for s, row in found.by_severity.items()
    ]
    if len(severities) > 1:
        severities.append(["mean", *(short(found.means.get(f"mean_{name}"), name != "nll") for name in names)])
    tables = [
        Table("By severity, means over types with 95% intervals", ["severity", *HEADS], severities),
        Table(
            f"Which shift breaks this model first: accuracy falls by over {100 * TOLERANCE:.0f} points, beyond noise; "
            "where it never does, its worst severity is shown",
            ["type", "breaks at severity", "accuracy there", "below clean"],
            [
                [
                    b.type.replace("_", " "),
                    str(b.severity or "never"),
                    percent(b.accuracy),
                    f"{100 * b.loss:.1f} points",
                ]
                for b in report.outcome.broken
            ],
        ),
    ]
    if found.normalised:
        rows = [[name, short(e)] for name, e in found.normalised.items()]
        tables.append(Table("Against the reference model (SS Eq. 34–36); 100% is as good as it", ["", "value"], rows))
    figures = [Figure(report.plot(metric), caption) for metric, caption in MAPS]
    notes = ["Items are resampled jointly over all cells: they show the same images."]
    return Panel("How well does it hold up on corrupted images?", lead, figures, tables, notes)


def _calibrators(o: Outcome) -> Panel:
    severities = sorted({s for rows in o.calibrators.values() for s in rows})
    last = severities[-1]
    ece = {name: rows[last]["ece"] for name, rows in o.calibrators.items()}
    known = {name: v for name, v in ece.items() if v is not None}
    best = min(known, key=lambda name: known[name])
    where = "on clean data" if last == 0 else f"at severity {last}"
    lead = (
        f"Every map was fitted on clean calibration data and applied unchanged. {where.capitalize()}, ECE is "
        + ", ".join(f"{percent(v)} with {_called(name)}" for name, v in known.items())
        + f"; {_called(best)} is best there."
    )
    tables = [
        Table(title, ["calibrator", *("clean" if s == 0 else f"severity {s}" for s in severities)], rows)
        for title, rows in (
            ("ECE, mean over types", _rows(o.calibrators, severities, "ece", True)),
            ("NLL, mean over types", _rows(o.calibrators, severities, "nll", False)),
        )
    ]
    named = {_called(name): rows for name, rows in o.calibrators.items()}

    def curve(metric: str, title: str) -> Figure:
        lines = {name: {s: row[metric] for s, row in rows.items()} for name, rows in named.items()}
        return Figure(severity_curves(lines, label=title, percent=metric == "ece"), f"{title} by severity")

    curves = [curve("ece", "ECE"), curve("nll", "NLL")] if len(severities) > 1 else []
    return Panel("Does a calibrator fitted on clean data survive the shift?", lead, curves, tables)


def _called(calibrator: str) -> str:
    return "no map" if calibrator == AS_IT_IS else calibrator


def _rows(
    calibrators: Mapping[str, Mapping[int, Mapping[str, float | None]]],
    severities: Sequence[int],
    metric: str,
    share: bool,
) -> list[list[str]]:
    return [
        [_called(name), *(short(Estimate(rows[s][metric]), share) for s in severities)]
        for name, rows in calibrators.items()
    ]


def _natural(o: Outcome) -> Panel:
    names, heads = ("accuracy", "nll", "ece", "auroc", "gap"), ("accuracy", *HEADS[1:], "confidence − accuracy")
    rows = [
        [title, str(report.n), *(short(report[name], name != "nll") for name in names)]
        for title, report in {"clean": o.clean, **o.natural}.items()
    ]
    drops = [
        f"on {title} accuracy is {_points(report['accuracy'], o.clean['accuracy'])} and ECE "
        f"{_points(report['ece'], o.clean['ece'])}"
        for title, report in o.natural.items()
    ]
    lead = "Against the clean test items, " + "; ".join(drops) + "."
    return Panel(
        "How well does it do on newly collected data?",
        lead,
        tables=[Table("Clean and shifted sets, with 95% intervals", ["set", "items", *heads], rows)],
        notes=["The sets hold different items, so differences are not paired."],
    )


def _foreign(o: Outcome) -> Panel:
    rows = [
        [
            f"{set_}: {score}".replace("_", " "),
            *(short(estimates[name]) for name in ("auroc", "aupr_in", "aupr_out", "fpr95")),
        ]
        for set_, report in o.ood.items()
        for score, estimates in report.scores.items()
        if estimates["auroc"].value is not None
    ]
    kl = [[name.replace("_", " "), str(r.outside), short(r.entropy_kl, False)] for name, r in o.ood.items()]
    report = next(iter(o.ood.values()))
    told = {name: r["entropy"]["auroc"].value or 0.0 for name, r in o.ood.items()}
    lead = (
        "Entropy is higher for a foreign item than for a familiar one in "
        + ", ".join(f"{percent(v)} of pairs ({name.replace('_', ' ')})" for name, v in told.items())
        + "; 50% is chance."
    )
    k = o.clean.k
    assert k is not None
    figure = entropy_histograms({name: e.numpy() for name, e in o.entropies.items()}, k)
    return Panel(
        "Does it know what it does not know?",
        lead,
        [Figure(figure, "Entropy of familiar and foreign items; the further apart the better", wide=True)],
        [
            Table("Telling foreign from familiar", ["set and score", "AUROC", "AUPR in", "AUPR out", "FPR95"], rows),
            Table("Symmetrised KL of the entropies", ["set", "items", "KL"], kl),
        ],
        [f"KL: {report.conventions['entropy_kl']}.", *(note for note in o.notes if note.split(":")[0] in o.ood)],
    )


def _steady(o: Outcome) -> Panel:
    names = ("consistency", "flip_rate", "cross_entropy_consistency", "relative_confidence")
    rows = [
        [name.replace("_", " "), *(short(row[m], m != "cross_entropy_consistency") for m in names)]
        for name, row in o.perturbations.items()
    ]
    least = min(o.perturbations, key=lambda name: o.perturbations[name]["consistency"].value or 0)
    lead = (
        f"Along {least.replace('_', ' ')}, the least steady of these, neighbouring frames agree in "
        f"{percent(o.perturbations[least]['consistency'].value)} of cases."
    )
    head = ["perturbation", *(n.replace("_", " ") for n in names)]
    return Panel(
        "Is it steady when an image changes a little?",
        lead,
        tables=[Table("Per perturbation (SS Eq. 37–39)", head, rows)],
    )


def _frequency(o: Outcome) -> Panel:
    at = min(o.frequency, key=lambda f: o.frequency[f].value or 0.0)
    clean = o.clean["accuracy"].value or 0.0
    worst = o.frequency[at]
    harmless = worst.high is not None and worst.high >= clean
    words = "No band of noise is seen to hurt; at worst, around" if harmless else "Worst is noise around"
    lead = f"{words} {at:g}π, accuracy is {short(worst)} against {percent(clean)} without noise."
    caption = "Accuracy under noise of one frequency (SS §2.2); dashed: without noise, shaded: 95% intervals"
    return Panel("Which frequencies does it depend on?", lead, [Figure(frequency_curve(o.frequency, clean), caption)])


def _points(shifted: Any, clean: Any) -> str:
    if shifted.value is None or clean.value is None:
        return DASH
    change = 100 * (shifted.value - clean.value)
    return f"{abs(change):.1f} points {'higher' if change > 0 else 'lower'}"
