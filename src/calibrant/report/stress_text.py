"""A stress run on a terminal: means by severity, what breaks first, calibrators, and a line for each other suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibrant.diagnostics.stress.analysis import AS_IT_IS, Outcome
from calibrant.report.numbers import DASH, percent
from calibrant.types import Estimate

COLUMNS = ("error", "nll", "ece", "auroc")


def text(o: Outcome) -> str:
    """The whole table."""
    lines = _narrow(by_severity(o))
    if o.corruptions is not None:
        lines += [f"{name} {shown(e)}" for name, e in o.corruptions.normalised.items()]
        lines += ["", breaking(o)]
    lines += _calibrated(o.calibrators)
    if o.perturbations:
        name, steady = min(o.perturbations.items(), key=lambda item: item[1]["consistency"].value or 0)
        lines.append(f"least steady along {name}: consistency {shown(steady['consistency'])}")
    if o.frequency:
        at, left = min(o.frequency.items(), key=lambda item: item[1].value or 0.0)
        lines.append(f"least accurate with noise around frequency {at:.2g}π: accuracy {shown(left)}")
    for name, report in o.ood.items():
        lines.append(f"{name}: AUROC of the entropy {shown(report['entropy']['auroc'])}")
    for name, shifted in o.natural.items():
        lines.append(f"{name}: accuracy {shown(shifted['accuracy'])}, ECE {shown(shifted['ece'])}")
    return "\n".join(lines)


def _narrow(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as they have to be, "6.0% [3.3, 10.3]" as "6.0% 3.3…10.3": four of them fit 80 columns."""
    short = [[cell.replace(" [", " ").replace(", ", "…").rstrip("]") for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in short) for i in range(len(short[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in short]


def by_severity(o: Outcome) -> list[tuple[str, ...]]:
    """Rows of text: a head, the clean items, then the mean over corruptions at each severity."""
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
    return [head, *((title, *(_unit(n, row.get(n)) for n in COLUMNS)) for title, row in rows.items())]


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
    """ECE under each map, a column for clean and for each severity."""
    if not calibrators:
        return []
    columns = list(next(iter(calibrators.values())))
    lines = ["", f"{'ECE with':<22}" + "".join(f"{'clean' if s == 0 else f'severity {s}':>12}" for s in columns)]
    for name, rows in calibrators.items():
        title = "no map" if name == AS_IT_IS else name
        lines.append(f"{title:<22}" + "".join(f"{percent(rows[s]['ece']):>12}" for s in columns))
    return [*lines, ""]


def shown(e: Estimate | None, share: bool = True) -> str:
    """With its interval; a share in percent, NLL and KL in nats."""
    if e is None or e.value is None:
        return DASH
    if e.low is None or e.high is None:
        return percent(e.value) if share else plain(e.value)
    if share:
        return f"{percent(e.value)} [{100 * e.low:.1f}, {100 * e.high:.1f}]"
    return f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]"


def plain(value: float | None) -> str:
    return DASH if value is None else f"{value:.3f}"


def _unit(name: str, e: Estimate | None) -> str:
    return shown(e, name != "nll")
