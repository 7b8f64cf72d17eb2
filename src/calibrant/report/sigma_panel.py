"""The σ curve of PEP as a section of the report (PEP Fig. 1): how much perturbation, and what it changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrant.ensembles.pep import PEP
from calibrant.ensembles.sigma import SigmaPoint
from calibrant.errors import InputError
from calibrant.report import numbers
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.pep import sigma_errors, sigma_likelihood


def sigma_panel(pep: PEP, points: Sequence[SigmaPoint] | None = None) -> Panel:
    """Return the panel: L(σ) with its band, each member, ECE and Brier along σ, from `PEP.fit` or `points`."""
    seen = pep.certificate
    along = sorted(points if points is not None else seen.curve if seen else (), key=lambda p: p.sigma)
    if not along:
        raise InputError("this PEP has no σ curve: make it with PEP.fit, or pass points=sigma_curve(…).points(…)")
    finite = [p for p in along if math.isfinite(p.log_likelihood)]
    zero = next((p.log_likelihood for p in finite if p.sigma == 0), math.nan)
    rows = [_row(p, zero) for p in along]
    notes = [
        "The band is ± 2 standard errors of the gain over the network itself, item by item: where it stays above the "
        "dashed line, the gain is more than the luck of the held-out items.",
        "Thin lines are single members; the dashed line is the network itself, σ = 0.",
    ]
    if seen is not None:
        kind = "the paper's golden section" if seen.search == "golden" else "a bracketing search, antithetic pairs"
        notes.append(f"Search: {kind}; {seen.passes} passes over the held-out items; {seen.rejected} probes rejected.")
        notes.extend(seen.notes)
    chosen = [p.sigma for p in along].index(pep.sigma) if any(p.sigma == pep.sigma for p in along) else None
    return Panel(
        title="How much should the weights be perturbed?",
        lead=_lead(pep),
        figures=[
            Figure(sigma_likelihood(finite), "Log-likelihood of the ensemble along σ, with its members"),
            Figure(sigma_errors(finite), "Calibration error and Brier score of the ensemble along σ"),
        ],
        tables=[Table("Along σ, on the held-out items", _HEAD, rows, chosen)],
        notes=notes,
    )


_HEAD = ("σ", "NLL", "gain", "± 2 s.e.", "mean NLL of a member", "ECE", "Brier", "AUROC")


def _row(p: SigmaPoint, zero: float) -> tuple[str, ...]:
    if not math.isfinite(p.log_likelihood):
        return (f"{p.sigma:.3g}", "not finite", *["–"] * (len(_HEAD) - 2))
    alone = -sum(p.members) / len(p.members) if p.members else math.nan
    error = math.nan if p.gain_error is None or p.sigma == 0 else 2 * p.gain_error
    return (
        f"{p.sigma:.3g}" if p.sigma else "0 (the network itself)",
        f"{-p.log_likelihood:.4f}",
        _number(p.log_likelihood - zero) if p.sigma else "–",
        _number(error),
        f"{alone:.4f}",
        *(numbers.value(name, getattr(p, name)) for name in ("ece", "brier", "auroc")),
    )


def _number(value: float) -> str:
    return f"{value:.4f}".replace("-", "\N{MINUS SIGN}") if math.isfinite(value) else "–"


def _lead(pep: PEP) -> str:
    said = f"PEP averages {pep.count} copies of the network, each with {pep.distribution} noise on {pep.share:.1%} of "
    said += "its weights. "
    if pep.certificate is None:
        return said + f"σ = {pep.sigma:.3g} was given, not fitted."
    before, after = pep.certificate.nll_at_zero, pep.certificate.nll
    if pep.sigma == 0:
        return said + f"Here no σ beats the network itself (NLL {before:.4f}): σ = 0, and PEP changes nothing."
    found = (
        f"σ* = {pep.sigma:.3g} maximises the likelihood of {pep.certificate.members} such copies on held-out items: "
    )
    return said + found + f"NLL {before:.4f} → {after:.4f}."
