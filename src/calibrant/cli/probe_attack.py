"""The probe `attack`: accuracy under attack and success rate against budget and frequency (SS App. E)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.attacks import ATTACKS, Attack, Bounds
from calibrant.cli.probe_results import Probed, side_by_side
from calibrant.diagnostics import under_attack
from calibrant.ensembles.deep import DeepEnsemble
from calibrant.ensembles.dropout import MCDropout
from calibrant.errors import InputError, unknown
from calibrant.report.probes.attack import panel
from calibrant.training import distances
from calibrant.types import Split

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.cli.probe_request import Request
    from calibrant.ensembles.reference import Reference

BUDGETED = ("fgsm", "pgd", "frequency_fgsm")
"""Attacks with an ε; the others look for the nearest success, which is `robustness`."""
FREQUENCIES = tuple(i / 10 for i in range(1, 10))
MEMBERS = 5
"""Of MC dropout: every gradient goes through all of them."""


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
            f"--ensemble {ensemble!r}: attack the network itself, or 'dropout'; members of a run are pooled"
        )
    distances.check_attackable(request.data, Split(split))

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        networks = [m.to(request.device) for m in model.members]
        predictor: Any = networks[0] if len(networks) == 1 else DeepEnsemble(networks)
        said = "the network" if len(networks) == 1 else f"the pool of its {len(networks)} members"
        if ensemble == "dropout":
            if len(networks) > 1:
                raise InputError(f"{model.name} has {len(networks)} members; --ensemble dropout takes one network")
            predictor, said = MCDropout(networks[0], members), f"the pool of {members} dropout masks"
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
        return {"split": split, "items": n, "predictor": said, "attacks": rows}, arrays

    items = distances.items_hash(request.part(split))
    settings = {"items": items, "attacks": names, "epsilon": budgets, "ensemble": ensemble, "members": members}
    return side_by_side(request, "attack", settings, measure, panel)


def _planned(names: list[str], budgets: list[float], bounds: Bounds) -> list[tuple[Attack, float, float | None]]:
    """Every attack at every budget; frequency FGSM at the largest, over the frequencies."""
    out: list[tuple[Attack, float, float | None]] = []
    for name in names:
        make: Any = ATTACKS[name]
        if name == "frequency_fgsm":
            top = max(budgets)
            out += [(make(epsilon=top, frequency=f, bounds=bounds), top, f) for f in FREQUENCIES]
        else:
            out += [(make(epsilon=e, bounds=bounds), e, None) for e in sorted(budgets)]
    return out
