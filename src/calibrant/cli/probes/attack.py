"""The probe `attack`: which answers survive, by budget and by frequency (SS App. E, Table E.2, Fig. E.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from calibrant.attacks import ATTACKS, Attack, Bounds
from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import SEEDS, compared, with_interval
from calibrant.diagnostics import under_attack
from calibrant.ensembles.deep import DeepEnsemble
from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.reference import Reference
from calibrant.errors import InputError, unknown
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, curves
from calibrant.training import distances
from calibrant.types import Split

BUDGETED = ("fgsm", "pgd", "frequency_fgsm")
"""The attacks with an ε. The others search for the nearest other prediction, as the probe `robustness` does."""
FREQUENCIES = tuple(i / 10 for i in range(1, 10))
MEMBERS = 5
"""The members of MC dropout: few, because every gradient goes through all of them."""


def attack(request: Request) -> Probed:
    split, names, budgets = request.splits[0], request.options["attack"], request.options["epsilon"]
    ensemble, members = request.options["ensemble"], request.options["members"] or MEMBERS
    for name in names:
        if name not in ATTACKS:
            raise unknown("attack", name, ATTACKS)
        if name not in BUDGETED:
            raise InputError(f"--attack {name} has no budget; use {', '.join(BUDGETED)}, or --what robustness")
    if ensemble not in (None, "dropout"):
        raise InputError(
            f"--ensemble {ensemble!r} cannot be attacked; use dropout, or leave it out (members of a run are pooled)"
        )
    distances.check_attackable(request.data, Split(split))

    def measure(model: Reference) -> Measured:
        networks = [m.to(request.device) for m in model.members]
        predictor: Any = networks[0] if len(networks) == 1 else DeepEnsemble(networks)
        attacked = "the network" if len(networks) == 1 else f"the pool of its {len(networks)} members"
        if ensemble == "dropout":
            if len(networks) > 1:
                raise InputError(f"{model.name} has {len(networks)} members; --ensemble dropout takes one network")
            predictor, attacked = MCDropout(networks[0], members), f"the pool of {members} dropout masks"
        bounds = Bounds(mean=model.mean, std=model.std)
        batches = list(request.batches(model, split))
        rows: list[dict[str, Any]] = []
        arrays: dict[str, Tensor] = {}
        for attack, epsilon, frequency in _planned(names, budgets, bounds):
            found = under_attack(predictor, batches, attack)
            name = next(n for n, kind in ATTACKS.items() if kind is type(attack))
            key = f"{name}.{epsilon:g}" + ("" if frequency is None else f".{frequency:g}")
            arrays[key] = found.survived
            rows.append(
                {
                    "attack": name,
                    "epsilon": epsilon,
                    "frequency": frequency,
                    "array": key,
                    "accuracy": found.accuracy(),
                    "accuracy_under_attack": found.accuracy_under_attack(),
                    "success_rate": found.success_rate(),
                }
            )
        n = len(next(iter(arrays.values())))
        return {"split": split, "items": n, "predictor": attacked, "attacks": rows}, arrays

    items = distances.items_hash(request.part(split))
    settings = {"items": items, "attacks": names, "epsilon": budgets, "ensemble": ensemble, "members": members}
    return side_by_side(request, "attack", settings, measure, panel)


def _planned(names: list[str], budgets: list[float], bounds: Bounds) -> list[tuple[Attack, float, float | None]]:
    """Return (attack, ε, frequency): every ε for every attack, every frequency at the largest ε for frequency FGSM."""
    out: list[tuple[Attack, float, float | None]] = []
    for name in names:
        make: Any = ATTACKS[name]
        if name == "frequency_fgsm":
            top = max(budgets)
            out += [(make(epsilon=top, frequency=f, bounds=bounds), top, f) for f in FREQUENCIES]
        else:
            out += [(make(epsilon=e, bounds=bounds), e, None) for e in sorted(budgets)]
    return out


HEAD = ("network, attack", "budget", "accuracy", "under attack", "success rate")


def panel(found: Sequence[Result]) -> Panel:
    names = list(dict.fromkeys(row["attack"] for row in found[0].record["attacks"]))
    figures = [_figure(found, name) for name in names]
    rows = [
        (
            f"{r.name}, {row['attack']}" + ("" if row["frequency"] is None else f" at {row['frequency']:g}π"),
            f"{row['epsilon']:.4g}",
            *(with_interval(row[k], 100, "%") for k in ("accuracy", "accuracy_under_attack", "success_rate")),
        )
        for r in found
        for name in names
        for row in _tabled(_rows(r, name))
    ]
    first = found[0].record
    return Panel(
        "Which answers survive an attack?",
        "An attack changes each pixel by at most its budget, to make the true class less likely. An item that was "
        "wrong before counts as wrong.",
        figures,
        [Table("Accuracy under attack", HEAD, rows)],
        [
            f"{first['items']} items of {first['split']}; the attack sees {first['predictor']}. Pixels are in [0, 1]. "
            "The table shows the most harmful frequency. The success rate is 1 − accuracy under attack / accuracy; "
            "intervals are Wilson's.",
            SEEDS,
        ],
    )


def _figure(found: Sequence[Result], name: str) -> Figure:
    by_frequency = any(row["frequency"] is not None for row in _rows(found[0], name))
    drawn = []
    for r in found:
        rows = _rows(r, name)
        x = [row["frequency" if by_frequency else "epsilon"] for row in rows]
        drawn.append(Curve.of(r.name, x, [row["accuracy_under_attack"] for row in rows]))
    last = _rows(found[0], name)[-1]
    survived = [r.arrays[last["array"]].double() for r in found]
    verdict = compared(found, survived, f"the share that survives {name} at {_at(last)}")
    xlabel = "frequency of the attack, in units of π" if by_frequency else "budget ε, in pixels of [0, 1]"
    what = "low values mark the frequencies that do harm" if by_frequency else "the slower it falls, the more robust"
    ax = curves(drawn, xlabel, "accuracy under attack", percent=True)
    return Figure(ax, f"{name}: {what}. {verdict}".strip())


def _rows(r: Result, name: str) -> list[dict[str, Any]]:
    return [row for row in r.record["attacks"] if row["attack"] == name]


def _tabled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of every budget, or of the one frequency that does the most harm."""
    if rows[0]["frequency"] is None:
        return rows
    return [min(rows, key=lambda row: float(row["accuracy_under_attack"]["value"]))]


def _at(row: dict[str, Any]) -> str:
    return f"ε = {row['epsilon']:.3g}" if row["frequency"] is None else f"{row['frequency']:g}π"
