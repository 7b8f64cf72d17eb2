"""Prediction sets that contain the truth: split conformal prediction (Vovk 2005; Angelopoulos & Bates 2021).

A score s(x, k) says how strange class k would be as the truth of x. Let p = softmax(z), let o(k) be the rank of class k
in falling order of p (1 for the likeliest, ties by number), and before(k) the sum of p over the classes before k:

    lac    1 − p_k                                                                  (Sadinle 2019)
    aps    before(k) + u p_k                                                        (Romano 2020)
    raps   before(k) + u p_k + penalty · max(0, o(k) − k_reg)                       (Angelopoulos 2021)
    topk   o(k)

A set holds the classes with s(x, k) ≤ q, where q is the r-th smallest score of the n labels, r = ⌈(n + 1)(1 − α)⌉. If
the items are exchangeable, the truth is in the set with probability at least 1 − α. Given the n items, the coverage is
Beta(r, n + 1 − r) if no scores are tied. `guarantee` asks for the smallest r such that the coverage given the n items
is at least 1 − α with that probability. By class, q of class k comes from the items of class k; by group, from the
items of the group (Mondrian). `quantile.py` treats items that come in groups, such as pixels.

By default ties are conservative: u = 0, and a class exactly at q is in the set. A set of aps then goes on until its
classes together hold more than q, so the class that crosses q is in, and no set is empty (Romano 2020, without the step
that drops that class at random). With `randomised`, u is uniform, and a class exactly at q is in if u is at most the u
of the item that q came from. u is a hash of the item's logits, rounded to float32. So the score is a function of the
item alone, as the proof demands, and a set does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.decisions.rule import Decisions, Rule, asked, batches, percent
from calibrant.errors import InputError, unknown
from calibrant.functional.chunks import CHUNK
from calibrant.functional.fingerprint import scrambled
from calibrant.functional.scores import argmax
from calibrant.types import Predictions

METHODS = ("lac", "aps", "raps", "topk")
PENALTY, K_REG = 0.01, 5  # the values that the paper of RAPS uses for ImageNet
_ORDER = "p = softmax(z'); classes in falling order of p, ties by number; "
FORMULAS = {
    "lac": "p = softmax(z'); the set holds k if 1 − p_k ≤ quantile",
    "aps": _ORDER + "c_k = Σ_j p_j over the classes before k; the set holds k if c_k ≤ quantile",
    "raps": _ORDER + "c_k = Σ_j p_j over the classes before k; o_k the place of k from 1; "
    "the set holds k if c_k + penalty max(0, o_k − k_reg) ≤ quantile",
    "topk": _ORDER + "o_k the place of k from 1; the set holds k if o_k ≤ quantile",
}
"""Method → formula of the sets without randomised ties."""


@dataclass(frozen=True, eq=False)
class PredictionSets(Rule):
    """The classes whose score is at most `quantile`. An answer is accepted if it is the only class of its set."""

    quantile: Tensor  # [1], or one for each class or group; if infinite, a set holds every class
    tie: Tensor  # a class whose score equals the quantile is in the set if the item's u is at most this
    method: str
    randomised: bool = False
    penalty: float = 0.0
    k_reg: int = 0
    kind: ClassVar[str] = "sets"
    outputs: ClassVar[tuple[str, ...]] = ("accepted", "sets")

    def decide(self, p: Predictions) -> Decisions:
        if self.by != "group":
            return self.up_to(p, self.quantile[None], self.tie[None])
        cell = self.cell(p, p.labels)
        return self.up_to(p, self.quantile[cell, None], self.tie[cell, None])

    def in_graph(self, logits: Tensor, predicted: Tensor, confidence: Tensor, unknown: Tensor) -> tuple[Tensor, ...]:
        p = torch.softmax(logits, -1)
        sets = (self.scores(p, torch.zeros_like(p[:, :1])) <= self.quantile) | unknown[:, None]
        return alone(sets, predicted), sets

    @property
    def formula(self) -> str:
        return FORMULAS[self.method]

    def up_to(self, p: Predictions, quantile: Tensor, tie: Tensor) -> Decisions:
        """Sets of the classes whose score is at most the quantile: [1, 1], [1, K] by class, or [N, 1] by item."""
        assert p.logits is not None
        sets = torch.empty(p.n, int(p.logits.shape[-1]), dtype=torch.bool)
        predicted, accepted = torch.empty(p.n, dtype=torch.long), torch.empty(p.n, dtype=torch.bool)
        for rows, z, prob, u in self.batches(p):
            predicted[rows] = argmax(z) if p.predicted is None else p.predicted[rows].cpu()
            q, at = (t if len(t) == 1 else t[rows] for t in (quantile, tie))
            if self.method == "lac" or q.shape[1] > 1:
                sets[rows] = self.within(self.scores(prob, u), q, u, at)
            else:  # scores rise with the rank, so a set holds the m likeliest classes: no need to sort the classes
                ordered, score = self.by_rank(prob, u)
                m = self.within(score, q, u, at).sum(-1, keepdim=True)
                least = ordered.gather(-1, (m - 1).clamp_min(0))
                found = (prob >= least) & (m > 0)
                tied = found.sum(-1) > m[:, 0]
                if bool(tied.any()):  # of equal probabilities, only the first classes are in
                    q, at = (t if len(t) == 1 else t[tied] for t in (q, at))
                    found[tied] = self.within(self.scores(prob[tied], u[tied]), q, u[tied], at)
                sets[rows] = found
            accepted[rows] = alone(sets[rows], predicted[rows])
        return Decisions(accepted, predicted, sets)

    def within(self, score: Tensor, q: Tensor, u: Tensor, tie: Tensor) -> Tensor:
        return (score < q) | ((score == q) & (u <= tie)) if self.randomised else score <= q

    def scores(self, prob: Tensor, u: Tensor) -> Tensor:
        return scores(prob, u, self.method, self.penalty, self.k_reg)

    def by_rank(self, prob: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities [n, K] in falling order, and their scores."""
        ordered = torch.from_numpy(np.sort(-prob.numpy(), -1)).neg_()  # much faster than a sort with indices
        return ordered, ranked(ordered, u, self.method, self.penalty, self.k_reg)

    def batches(self, p: Predictions) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Yield (rows, logits [n, K], probabilities [n, K], u [n, 1]), a few items at a time."""
        for rows, z in batches(p, CHUNK // 4):  # 1 MiB: the same pages are reused
            u = uniform(z) if self.randomised else torch.zeros(len(z), 1, dtype=torch.float64)
            yield rows, z, torch.softmax(z, -1), u

    def of_labels(self, p: Predictions) -> tuple[Tensor, Tensor]:
        """The score of each item's true class [N], and u [N]."""
        own, chance = torch.empty(2, p.n, dtype=torch.float64)
        for rows, _, prob, u in self.batches(p):
            y = p.labels[rows].cpu()[:, None]
            if self.method == "lac":
                own[rows] = 1 - prob.gather(1, y)[:, 0]
            else:
                mine = prob.gather(1, y)
                earlier = torch.arange(prob.shape[1]) < y
                rank = ((prob > mine) | ((prob == mine) & earlier)).sum(-1, keepdim=True)
                own[rows] = self.by_rank(prob, u)[1].gather(1, rank)[:, 0]
            chance[rows] = u[:, 0]
        return own, chance

    @property
    def sentence(self) -> str:
        c = self.record.certificate
        each = "" if self.by is None else f" in each {self.by}"
        said = f"{self.method} sets contain the truth with probability {asked(c['coverage'])} or more{each}"
        if self.grouped:
            said += f" for an item of a new group, chosen on {c['n']:,} groups"
        if c["guarantee"] is not None:
            said += f" (guaranteed with {asked(c['guarantee'])} confidence)"
        said += f": {c['size']:.2f} classes on average"
        if c["beta"] is not None:
            a, b = c["beta"]
            low, high = c["range"]
            said += f"; given these {c['n']:,} items, coverage is Beta({a}, {b}): {percent(low)} to {percent(high)}"
            said += ", or more because of ties" if c["tied"] else ""
        return said


def scores(p: Tensor, u: Tensor, method: str, penalty: float = 0.0, k_reg: int = 0) -> Tensor:
    """The scores [N, K] of probabilities [N, K], with u [N, 1], in tensor operations that can be exported."""
    if method == "lac":
        return 1 - p
    stable = {} if torch.compiler.is_exporting() else {"stable": True}  # ONNX has only a stable sort
    ordered, classes = p.sort(dim=-1, descending=True, **stable)
    return torch.zeros_like(p).scatter(-1, classes, ranked(ordered, u, method, penalty, k_reg))


def ranked(ordered: Tensor, u: Tensor, method: str, penalty: float, k_reg: int) -> Tensor:
    """The scores [N, K] of probabilities in falling order."""
    rank = torch.arange(1, ordered.shape[-1] + 1, dtype=ordered.dtype, device=ordered.device)
    if method == "topk":
        return rank.expand_as(ordered)
    found = ordered.cumsum(-1) - (1 - u) * ordered
    return found + penalty * (rank - k_reg).clamp_min(0) if method == "raps" else found


def alone(sets: Tensor, predicted: Tensor) -> Tensor:
    """Whether a set holds the predicted class and nothing else."""
    return (sets.sum(-1, dtype=torch.int32) == 1) & sets.gather(-1, predicted[:, None])[:, 0]


def uniform(z: Tensor) -> Tensor:
    """u [N, 1] in [0, 1): a hash of each row of float64 logits."""
    # float32, because the float64 logits of a map are rounded differently in another batch; + 0.0 turns −0.0 into 0.0
    bits = (z.float() + 0.0).contiguous().view(torch.int32).long()
    mixed = scrambled(scrambled(bits + torch.arange(z.shape[-1])).sum(-1, keepdim=True))
    return (mixed & ((1 << 52) - 1)).double() / (1 << 52)


def scorer(
    p: Predictions, method: str, randomised: bool = False, penalty: float | None = None, k_reg: int | None = None
) -> PredictionSets:
    """Return sets that have no quantile yet. Refuse settings and predictions that no sets can be made of."""
    if method not in METHODS:
        raise unknown("method of sets", method, METHODS)
    if p.logits is None:
        raise InputError(
            f"{p.source + ': ' if p.source else ''}{method} sets need the probabilities of all classes, and this is a "
            "top-1 set; choose a threshold (accuracy, accept)"
        )
    if method != "raps" and (penalty is not None or k_reg is not None):
        raise InputError(f"penalty and k_reg belong to raps, not to {method}")
    regular = (PENALTY if penalty is None else float(penalty), K_REG if k_reg is None else int(k_reg))
    if min(regular) < 0:
        raise InputError(f"penalty={regular[0]:g} and k_reg={regular[1]} must be 0 or more")
    none = torch.zeros(0, dtype=torch.float64)
    return PredictionSets(none, none, method, randomised, *(regular if method == "raps" else (0.0, 0)))
