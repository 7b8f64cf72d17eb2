"""A stress run on a terminal: means by severity, what breaks first, calibrators, and one line for each other suite."""

from __future__ import annotations

from collections.abc import Mapping

from calibrant.diagnostics.stress.analysis import AS_IT_IS, Outcome
from calibrant.display import aligned
from calibrant.report.numbers import percent, short
from calibrant.types import Estimate

COLUMNS = ("error", "nll", "ece", "auroc")


def text(o: Outcome) -> str:
    """The whole table."""
    narrow = [[cell.replace(" [", " ").replace(", ", "…").rstrip("]") for cell in row] for row in by_severity(o)]
    lines = aligned(narrow, numbers=True)  # "6.0% 3.3…10.3" instead of "6.0% [3.3, 10.3]": four of them fit 80 columns
    if o.corruptions is not None:
        lines += [f"{name} {short(e)}" for name, e in o.corruptions.normalised.items()]
        lines += ["", breaking(o)]
    lines += _calibrated(o.calibrators)
    if o.perturbations:
        name, steady = min(o.perturbations.items(), key=lambda item: item[1]["consistency"].value or 0)
        lines.append(f"least steady along {name}: consistency {short(steady['consistency'])}")
    if o.frequency:
        at, left = min(o.frequency.items(), key=lambda item: item[1].value or 0.0)
        lines.append(f"least accurate with noise around frequency {at:.2g}π: accuracy {short(left)}")
    for name, report in o.ood.items():
        lines.append(f"{name}: AUROC of the entropy {short(report['entropy']['auroc'])}")
    for name, shifted in o.natural.items():
        lines.append(f"{name}: accuracy {short(shifted['accuracy'])}, ECE {short(shifted['ece'])}")
    return "\n".join(lines)


def by_severity(o: Outcome) -> list[tuple[str, ...]]:
    """Rows of text: the header, the clean items, then the mean over corruptions at each severity."""
    accuracy = o.clean["accuracy"].value
    clean = {name: Estimate(o.clean[name].value) for name in COLUMNS[1:]}
    rows: dict[str, Mapping[str, Estimate]] = {
        "clean": {"error": Estimate(None if accuracy is None else 1 - accuracy), **clean}
    }
    if o.corruptions is not None:
        rows |= {str(severity): row for severity, row in o.corruptions.by_severity.items()}
        if len(o.corruptions.by_severity) > 1:
            rows["mean"] = {name: e for name in COLUMNS if (e := o.corruptions.means.get(f"mean_{name}")) is not None}
    head = ("severity", *COLUMNS)
    return [head, *((title, *(short(row.get(n), n != "nll") for n in COLUMNS)) for title, row in rows.items())]


def breaking(o: Outcome) -> str:
    """One sentence: which shift breaks this model first."""
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


def _calibrated(calibrators: Mapping[str, Mapping[int, Mapping[str, float | None]]]) -> list[str]:
    """ECE under each map: one column for clean, one for each severity."""
    if not calibrators:
        return []
    severities = list(next(iter(calibrators.values())))
    rows = [["ECE with", *("clean" if s == 0 else f"severity {s}" for s in severities)]]
    for name, by in calibrators.items():
        rows.append(["no map" if name == AS_IT_IS else name, *(percent(by[s]["ece"]) for s in severities)])
    return ["", *aligned(rows, numbers=True), ""]
