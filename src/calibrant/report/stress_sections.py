"""The result of a stress run in words and tables: a terminal prints the words, the HTML report shows both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.diagnostics.stress import Outcome
from calibrant.diagnostics.stress.analysis import NO_CALIBRATOR, TOLERANCE
from calibrant.report.numbers import DASH, percent, short
from calibrant.report.panels import Panel, Table
from calibrant.types import Estimate

COLUMNS = {"error": "error", "nll": "NLL", "ece": "ECE", "auroc": "AUROC"}


def sections(o: Outcome) -> dict[str, Panel]:
    """Return a section for each suite of the run, without figures."""
    found = {
        "corruptions": None if o.corruptions is None else corruptions(o),
        "calibrators": calibrators(o) if len(o.calibrators) > 1 else None,
        "natural": natural(o) if o.natural else None,
        "ood": foreign(o) if o.ood else None,
        "perturbations": steady(o) if o.perturbations else None,
        "frequency": frequency(o) if o.frequency else None,
    }
    return {name: panel for name, panel in found.items() if panel is not None}


def corruptions(o: Outcome) -> Panel:
    found = o.corruptions
    assert found is not None
    worst = max(found.by_severity)
    last = found.by_severity[worst]
    over = f", averaged over {len(found.by_type)} types" if len(found.by_type) > 1 else ""
    lead = (
        f"{breaking(o)} At severity {worst}{over}, "
        f"the error is {short(last['error'])} and ECE {short(last['ece'])}; on clean images, they are "
        f"{percent(1 - (o.clean['accuracy'].value or 0))} and {percent(o.clean['ece'].value)}."
    )
    head, *rows = by_severity(o)
    broken = [
        [b.type.replace("_", " "), str(b.severity or "never"), percent(b.accuracy), f"{100 * b.loss:.1f} points"]
        for b in o.broken
    ]
    tables = [
        Table("By severity: means over types, with 95% intervals", head, rows),
        Table(
            f"The severity at which accuracy first falls by over {100 * TOLERANCE:.0f} points, beyond noise; if it "
            "never does, the worst severity is shown",
            ["type", "breaks at severity", "accuracy there", "below clean"],
            broken,
        ),
    ]
    if found.normalised:
        ratios = [[name, short(e)] for name, e in found.normalised.items()]
        tables.append(Table("Against the reference model (SS Eq. 34–36); 100% is as good as it", ["", "value"], ratios))
    notes = ["The intervals resample the items of all cells together, because the cells show the same images."]
    return Panel("How well does it hold up on corrupted images?", lead, tables=tables, notes=notes)


def by_severity(o: Outcome) -> list[tuple[str, ...]]:
    """Return rows of text: the header, the clean items, then the mean over corruptions at each severity."""
    accuracy = o.clean["accuracy"].value
    clean = {name: Estimate(o.clean[name].value) for name in ("nll", "ece", "auroc")}
    rows: dict[str, Mapping[str, Estimate]] = {
        "clean": {"error": Estimate(None if accuracy is None else 1 - accuracy), **clean}
    }
    if o.corruptions is not None:
        rows |= {str(severity): row for severity, row in o.corruptions.by_severity.items()}
        if len(o.corruptions.by_severity) > 1:
            rows["mean"] = {name: e for name in COLUMNS if (e := o.corruptions.means.get(f"mean_{name}")) is not None}
    head = ("severity", *COLUMNS.values())
    return [head, *((title, *(short(row.get(n), n != "nll") for n in COLUMNS)) for title, row in rows.items())]


def breaking(o: Outcome) -> str:
    """Say which shift breaks this model first."""
    if not o.broken or o.corruptions is None:
        return "no corruption was tried"
    worst = o.broken[0]
    name = worst.type.replace("_", " ")
    left = f"accuracy {100 * worst.accuracy:.1f}%, {100 * worst.loss:.1f} points below clean"
    if worst.severity is None:
        return f"No corruption breaks this model; {name} comes closest ({left})."
    if len(o.corruptions.by_severity) == 1:
        where = f"at severity {worst.severity}, the only one tried"
        return f"{name.capitalize()} hurts this model most: {where}, {left}."
    return f"{name.capitalize()} breaks this model first: at severity {worst.severity}, {left}."


def calibrators(o: Outcome) -> Panel:
    severities = sorted({s for rows in o.calibrators.values() for s in rows})
    last = severities[-1]
    ece = {name: rows[last]["ece"] for name, rows in o.calibrators.items()}
    known = {name: v for name, v in ece.items() if v is not None}
    best = min(known, key=lambda name: known[name])
    where = "on clean data" if last == 0 else f"at severity {last}"
    lead = (
        f"Every map was fitted on clean calibration data and applied unchanged. {where.capitalize()}, ECE is "
        + ", ".join(f"{percent(v)} with {called(name)}" for name, v in known.items())
        + f"; {called(best)} is best there."
    )
    tables = [
        Table(title, ["calibrator", *("clean" if s == 0 else f"severity {s}" for s in severities)], rows)
        for title, rows in (
            ("ECE, mean over types", _rows(o.calibrators, severities, "ece", True)),
            ("NLL, mean over types", _rows(o.calibrators, severities, "nll", False)),
        )
    ]
    return Panel("Does a calibrator fitted on clean data survive the shift?", lead, tables=tables)


def called(calibrator: str) -> str:
    return "no map" if calibrator == NO_CALIBRATOR else calibrator


def _rows(
    calibrators: Mapping[str, Mapping[int, Mapping[str, float | None]]],
    severities: Sequence[int],
    metric: str,
    share: bool,
) -> list[list[str]]:
    return [
        [called(name), *(short(Estimate(rows[s][metric]), share) for s in severities)]
        for name, rows in calibrators.items()
    ]


def natural(o: Outcome) -> Panel:
    heads = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "auroc": "AUROC", "gap": "confidence − accuracy"}
    rows = [
        [title, str(report.n), *(short(report[name], name != "nll") for name in heads)]
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
        tables=[Table("Clean and shifted sets, with 95% intervals", ["set", "items", *heads.values()], rows)],
        notes=["The sets hold different items, so the differences are not paired."],
    )


def foreign(o: Outcome) -> Panel:
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
    return Panel(
        "Does it know what it does not know?",
        lead,
        tables=[
            Table("Telling foreign from familiar", ["set and score", "AUROC", "AUPR in", "AUPR out", "FPR95"], rows),
            Table("Symmetrised KL of the entropies", ["set", "items", "KL"], kl),
        ],
        notes=[f"KL: {report.conventions['entropy_kl']}.", *(note for note in o.notes if note.split(":")[0] in o.ood)],
    )


def steady(o: Outcome) -> Panel:
    names = ("consistency", "flip_rate", "cross_entropy_consistency", "relative_confidence")
    rows = [
        [name.replace("_", " "), *(short(row[m], m != "cross_entropy_consistency") for m in names)]
        for name, row in o.perturbations.items()
    ]
    least = min(o.perturbations, key=lambda name: o.perturbations[name]["consistency"].value or 0)
    lead = (
        f"The least steady sequence is {least.replace('_', ' ')}: neighbouring frames agree in "
        f"{percent(o.perturbations[least]['consistency'].value)} of cases."
    )
    head = ["perturbation", *(n.replace("_", " ") for n in names)]
    return Panel(
        "Is it steady when an image changes a little?",
        lead,
        tables=[Table("Per perturbation (SS Eq. 37–39)", head, rows)],
    )


def frequency(o: Outcome) -> Panel:
    at = min(o.frequency, key=lambda f: o.frequency[f].value or 0.0)
    clean = o.clean["accuracy"].value or 0.0
    worst = o.frequency[at]
    harmless = worst.high is not None and worst.high >= clean
    words = "No band of noise clearly lowers the accuracy" if harmless else "One band of noise lowers the accuracy most"
    lead = f"{words}: it is {short(worst)} around {at:g}π and {percent(clean)} without noise."
    return Panel("Which frequencies does it depend on?", lead)


def _points(shifted: Any, clean: Any) -> str:
    if shifted.value is None or clean.value is None:
        return DASH
    change = 100 * (shifted.value - clean.value)
    return f"{abs(change):.1f} points {'higher' if change > 0 else 'lower'}"
