"""How well a score tells out-of-distribution items from familiar ones: AUROC, AUPR, FPR95, and the divergence of the
entropies.

    auroc     P(an outside item looks more foreign than an inside one) + ½ P(tie)
    aupr_in   average precision with inside items as positives, the most familiar first
    aupr_out  with outside items as positives, the most foreign first
    fpr95     share of outside items accepted where 95% of the inside ones are

    entropy_kl  Σ_b (p_b − q_b) log(p_b / q_b) of the histograms of entropy (PEP §3.2; bins are a setting)

Intervals resample each set on its own (docs/coverage.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError, unknown
from calibrant.functional import novelty, ranking
from calibrant.functional.pooling import pool
from calibrant.metrics.bootstrap import with_bca
from calibrant.metrics.conventions import REPLICATES, Resampling
from calibrant.metrics.entropy_divergence import Binning, entropy_divergence
from calibrant.types import SCHEMA, Estimate, Predictions, jsonable


@dataclass(frozen=True)
class NoveltyScore:
    """A line of the table: how a score is computed, what it needs, and whether items are ranked on its logarithm."""

    title: str
    compute: Callable[[Tensor], Tensor]
    needs: str = ""  # "members" or "raw"
    logarithmic: bool = False  # tiny values differ by ratio, not by difference


SCORES: dict[str, NoveltyScore] = {
    "max_probability": NoveltyScore("1 − largest probability", novelty.max_probability),
    "entropy": NoveltyScore("entropy of the prediction", novelty.entropy, logarithmic=True),
    "mutual_information": NoveltyScore(
        "what members disagree about", novelty.mutual_information, needs="members", logarithmic=True
    ),
    "energy": NoveltyScore("−log Σ exp z", novelty.energy, needs="raw"),
    "max_logit": NoveltyScore("−largest logit", novelty.max_logit, needs="raw"),
}
"""Name → score, higher = more foreign."""

METRICS = ("auroc", "aupr_in", "aupr_out", "fpr95")
_LEAST = 1e-15  # values of a logarithmic score below this are rounding

_RANKED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "auroc": ranking.auroc,
    "aupr_in": ranking.aupr_success,
    "aupr_out": ranking.aupr_error,
    "fpr95": ranking.fpr_at_tpr,
}


def _ranked(inside: Tensor, outside: Tensor) -> dict[str, Tensor]:
    return {name: compute(inside, outside) for name, compute in _RANKED.items()}


@dataclass(frozen=True)
class OODReport:
    """`report["entropy"]["auroc"].value`. `entropy_kl` compares the entropies, whatever scores are asked for."""

    scores: Mapping[str, Mapping[str, Estimate]]
    entropy_kl: Estimate
    inside: int
    outside: int
    conventions: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Mapping[str, Estimate]:
        return self.scores[name]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "inside": self.inside,
            "outside": self.outside,
            "scores": {n: {m: e.to_dict() for m, e in row.items()} for n, row in self.scores.items()},
            "entropy_kl": self.entropy_kl.to_dict(),
            "conventions": dict(self.conventions),
        }

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(jsonable(self.to_dict()), indent=indent, ensure_ascii=False, allow_nan=False)


def novelty_score(name: str, predictions: Predictions) -> Tensor:
    """The score of every item, [N]."""
    reason = lacking(name, predictions)
    if reason is not None:
        raise InputError(f"{predictions.source + ': ' if predictions.source else ''}{name}: {reason}")
    assert predictions.logits is not None
    logits = predictions.logits
    if SCORES[name].needs == "" and logits.ndim == 3:
        logits = pool(logits)
    return SCORES[name].compute(logits).cpu()


def lacking(name: str, predictions: Predictions) -> str | None:
    """Why this score does not exist for these predictions; None if it exists."""
    if name not in SCORES:
        raise unknown("novelty score", name, SCORES)
    if predictions.logits is None:
        return "needs logits or probabilities; this set is top-1 only"
    if SCORES[name].needs == "members" and predictions.members < 2:
        return "needs the members of an ensemble ([M, N, K], --keep-members)"
    if SCORES[name].needs == "raw" and not predictions.raw:
        return "needs the network's raw logits; these are log-probabilities (pooled, mapped or from probabilities)"
    return None


def ood(
    inside: Predictions,
    outside: Predictions,
    *,
    scores: Sequence[str] | None = None,
    binning: Binning = Binning(),  # noqa: B008
    intervals: bool = True,
    seed: int = 0,
    replicates: int = REPLICATES,
) -> OODReport:
    """How well each score tells `outside` from `inside`. The labels of the outside items do not matter."""
    if inside.k != outside.k or inside.k is None:
        raise InputError(f"inside has {inside.k} classes and outside {outside.k}; both must come from one predictor")
    names = list(SCORES) if scores is None else list(scores)
    values: dict[str, tuple[Tensor, Tensor]] = {}
    reasons: dict[str, str] = {}
    for name in names:
        reason = lacking(name, inside) or lacking(name, outside)
        if reason is None:
            values[name] = (novelty_score(name, inside), novelty_score(name, outside))
        else:
            reasons[name] = reason
    entropies = values.get("entropy") or (novelty_score("entropy", inside), novelty_score("entropy", outside))
    resampling = Resampling(seed, replicates) if intervals else None
    return ood_report(values, reasons, entropies, inside.k, binning, resampling)


def ood_report(
    values: Mapping[str, tuple[Tensor, Tensor]],
    reasons: Mapping[str, str],
    entropies: tuple[Tensor, Tensor],
    k: int,
    binning: Binning,
    resampling: Resampling | None,
) -> OODReport:
    """The report of computed scores (inside [N], outside [N']) by name. `reasons` says why others are missing."""
    n, m = (len(v) for v in entropies)
    rows: dict[str, Mapping[str, Estimate]] = {
        name: separated(a, b, resampling, logarithmic=SCORES[name].logarithmic) for name, (a, b) in values.items()
    }
    rows |= {name: dict.fromkeys(METRICS, Estimate(None, reason=reason)) for name, reason in reasons.items()}
    said = {
        "score": "higher = more foreign",
        "ties": "mid-rank",
        "fpr95": "share of outside items accepted where 95% of inside items are",
        "entropy_kl": f"KL(in ‖ out) + KL(out ‖ in); {binning.describe(k)}",
        "interval": None if resampling is None else resampling.describe("items of each set, within it"),
    }
    return OODReport(rows, entropy_divergence(entropies, k, binning, resampling), n, m, said)


def separated(
    inside: Tensor, outside: Tensor, resampling: Resampling | None = None, *, logarithmic: bool = False
) -> dict[str, Estimate]:
    """auroc, aupr_in, aupr_out and fpr95 of one score."""
    if len(inside) == 0 or len(outside) == 0:
        raise InputError("both sets need at least one item")
    both = torch.cat([inside, outside]).double().cpu()
    if bool(torch.isnan(both).any()):
        raise InputError("a score is NaN; the predictor is not finite on these items")
    ranked = ranking.rank(both.clamp_min(_LEAST).log() if logarithmic else both)
    familiar = torch.arange(len(both)) < len(inside)
    good, bad = ranking.run_weights(ranked, familiar)
    out = {name: Estimate(float(value)) for name, value in _ranked(good, bad).items()}
    if resampling is None or min(len(inside), len(outside)) < 2:
        return out
    return with_bca(out, _ranked, good[0], bad[0], resampling, method="BCa bootstrap of both sets", apart=True)


__all__ = [
    "METRICS",
    "SCORES",
    "Binning",
    "NoveltyScore",
    "OODReport",
    "entropy_divergence",
    "novelty_score",
    "ood",
    "ood_report",
    "separated",
]
