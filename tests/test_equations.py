"""Every formula of the metrics, evaluated naively: Python loops in float64, scikit-learn, scipy. No code of ours."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk

import calibrant
from calibrant.functional import ranking
from calibrant.functional.decomposition import ece_identity, murphy_brier, murphy_nll
from calibrant.functional.pooling import disagreement
from calibrant.functional.scores import reduce
from calibrant.metrics.classwise_interval import _mad
from calibrant.metrics.compare import holm

BINS = 15
N, K = 300, 5


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(logits, probabilities, labels): overconfident, with ties (rows repeated)."""
    rng = np.random.default_rng(3)
    y = rng.integers(K, size=N)
    z = rng.normal(size=(N, K)) * 2
    z[np.arange(N), y] += 2.5
    z[20:40] = z[:20]
    p = np.exp(z - z.max(1, keepdims=True))
    return z, p / p.sum(1, keepdims=True), y


@pytest.fixture(scope="module")
def values(data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> dict[str, float | None]:
    z, _, y = data
    return {k: e.value for k, e in calibrant.evaluate(z, y, intervals=False).items()}


def top(p: np.ndarray, y: np.ndarray) -> tuple[list[float], list[int]]:
    return p.max(1).tolist(), (p.argmax(1) == y).astype(int).tolist()


def binned(conf: list[float], hit: list[int]) -> list[tuple[int, float, float]]:
    """(count, mean confidence, accuracy) of every right-closed bin that holds items."""
    out = []
    for b in range(BINS):
        inside = [i for i, c in enumerate(conf) if b / BINS < c <= (b + 1) / BINS]
        if inside:
            mean_conf = sum(conf[i] for i in inside) / len(inside)
            out.append((len(inside), mean_conf, sum(hit[i] for i in inside) / len(inside)))
    return out


def test_proper_scores(data, values) -> None:
    _, p, y = data
    assert values["accuracy"] == pytest.approx(sk.accuracy_score(y, p.argmax(1)), abs=1e-15)
    assert values["nll"] == pytest.approx(sk.log_loss(y, p), abs=1e-12)
    brier = sum(sum((p[i, k] - (k == y[i])) ** 2 for k in range(K)) for i in range(N)) / N
    assert values["brier"] == pytest.approx(brier, abs=1e-12)


def test_binary_brier_is_twice_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    p, y = rng.random(100), rng.integers(2, size=100)
    report = calibrant.evaluate(probs=p, labels=y, intervals=False)
    assert report["brier"].value == pytest.approx(2 * sk.brier_score_loss(y, p), abs=1e-12)


def test_ece_and_its_variants(data, values) -> None:
    bins = binned(*top(*data[1:]))
    gaps = [(n / N, c, a) for n, c, a in bins]
    assert values["ece"] == pytest.approx(sum(w * abs(c - a) for w, c, a in gaps), abs=1e-12)
    assert values["ece_l2"] == pytest.approx(math.sqrt(sum(w * (c - a) ** 2 for w, c, a in gaps)), abs=1e-12)
    assert values["ece_max"] == pytest.approx(max(abs(c - a) for _, c, a in gaps), abs=1e-12)
    assert values["ece_over"] == pytest.approx(sum(w * max(c - a, 0) for w, c, a in gaps), abs=1e-12)
    assert values["ece_under"] == pytest.approx(sum(w * max(a - c, 0) for w, c, a in gaps), abs=1e-12)
    assert values["oe"] == pytest.approx(sum(w * c * max(c - a, 0) for w, c, a in gaps), abs=1e-12)


def test_debiased_ece_subtracts_the_folded_normal_bias(data, values) -> None:
    debiased = 0.0
    for n, c, a in binned(*top(*data[1:])):
        gap, sd = n / N * abs(c - a), n / N * math.sqrt(a * (1 - a) / n)
        bias = stats.foldnorm(gap / sd, scale=sd).mean() - gap if sd > 0 else 0.0
        debiased += gap - bias
    assert values["ece_debiased"] == pytest.approx(max(debiased, 0.0), abs=1e-10)


def test_equal_mass_bins_keep_ties(data, values) -> None:
    conf, hit = top(*data[1:])
    sums = [0.0] * BINS
    for c, h in zip(conf, hit, strict=True):
        below, equal = sum(x < c for x in conf), sum(x == c for x in conf)
        sums[min(int((below + equal / 2) * BINS / N), BINS - 1)] += c - h
    assert values["ece_mass"] == pytest.approx(sum(abs(s) for s in sums) / N, abs=1e-12)


def test_classwise_ece(data, values) -> None:
    _, p, y = data
    total = 0.0
    for k in range(K):
        for n, c, a in binned(p[:, k].tolist(), (y == k).astype(int).tolist()):
            total += n / N * abs(c - a)
    assert values["ece_classwise"] == pytest.approx(total / K, abs=1e-12)


def test_ks_and_gap(data, values) -> None:
    conf, hit = top(*data[1:])
    worst = max(abs(sum(c - h for c, h in zip(conf, hit, strict=True) if c <= t)) / N for t in conf)
    assert values["ks"] == pytest.approx(worst, abs=1e-12)
    assert values["gap"] == pytest.approx(sum(conf) / N - sum(hit) / N, abs=1e-12)


def test_ds_eq_4_refinement_is_the_mann_whitney_statistic(data, values) -> None:
    conf, hit = top(*data[1:])
    good = [c for c, h in zip(conf, hit, strict=True) if h]
    bad = [c for c, h in zip(conf, hit, strict=True) if not h]
    pairs = sum((g > b) + 0.5 * (g == b) for g in good for b in bad)
    assert values["auroc"] == pytest.approx(pairs / (len(good) * len(bad)), abs=1e-12)
    # Eq. 4 with |Sᵖ| where the paper prints |Sⁿ|
    ranks = stats.rankdata(conf)
    rank_sum = sum(r for r, h in zip(ranks, hit, strict=True) if h)
    r = (rank_sum - len(good) * (len(good) + 1) / 2) / (len(good) * len(bad))
    assert values["auroc"] == pytest.approx(r, abs=1e-12)


def test_refinement_against_scikit_learn(data, values) -> None:
    conf, hit = (np.array(x) for x in top(*data[1:]))
    assert values["auroc"] == pytest.approx(sk.roc_auc_score(hit, conf), abs=1e-12)
    assert values["aupr_success"] == pytest.approx(sk.average_precision_score(hit, conf), abs=1e-12)
    assert values["aupr_error"] == pytest.approx(sk.average_precision_score(1 - hit, -conf), abs=1e-12)
    fpr, tpr, _ = sk.roc_curve(hit, conf, drop_intermediate=False)
    assert values["fpr95"] == pytest.approx(fpr[np.argmax(tpr >= 0.95 - 1e-12)], abs=1e-12)


def test_aurc_is_the_mean_risk_over_coverages() -> None:
    rng = np.random.default_rng(5)
    conf, hit = rng.permutation(200) / 400 + 0.4, rng.integers(2, size=200)
    order = np.argsort(-conf)
    risks = [sum(1 - hit[i] for i in order[:k]) / k for k in range(1, 201)]
    best = [max(0, k - hit.sum()) / k for k in range(1, 201)]
    good, bad = torch.tensor(hit[order])[None].double(), torch.tensor(1 - hit[order])[None].double()
    assert float(ranking.aurc(good, bad)) == pytest.approx(np.mean(risks), abs=1e-12)
    assert float(ranking.best_aurc(good, bad)) == pytest.approx(np.mean(best), abs=1e-12)


def test_aurc_of_ties_is_the_expectation_over_their_orders() -> None:
    # two runs: {2 right, 1 wrong} tied, then {1 right, 1 wrong} tied
    from itertools import permutations

    risks = []
    for first in permutations([0, 0, 1]):
        for second in permutations([0, 1]):
            wrong = [*first, *second]
            risks.append(np.mean([sum(wrong[:k]) / k for k in range(1, 6)]))
    got = ranking.aurc(torch.tensor([[2.0, 1.0]]).double(), torch.tensor([[1.0, 1.0]]).double())
    assert float(got) == pytest.approx(np.mean(risks), abs=1e-12)


def test_ds_eq_5_to_9(data, values) -> None:
    z, p, y = data
    conf, hit = top(p, y)
    right, wrong = sum(hit), N - sum(hit)
    identity = ece_identity(reduce(calibrant.predictions(z, y)))
    bins = binned(conf, hit)
    eq5 = sum(n / N * (c - a) for n, c, a in bins)
    assert eq5 == pytest.approx(sum(conf) / N - right / N, abs=1e-12)  # Eq. 6 and 7
    eq8 = right / N * (1 - right / N) * (2 * values["auroc"] - 1) + 0.5
    eq9 = identity.alpha - identity.refinement_term - identity.gamma
    assert eq9 == pytest.approx(sum(conf) / N - eq8, abs=1e-12)
    assert identity.predicted == pytest.approx(eq9, abs=1e-12)
    assert identity.gamma == pytest.approx((right**2 + wrong**2) / (2 * N**2), abs=1e-15)
    assert identity.residual == pytest.approx(values["ece"] - eq9, abs=1e-12)
    assert identity.bins_underconfident == sum(a > c for _, c, a in bins)
    assert identity.bins == len(bins)


def test_murphy_1973(data) -> None:
    z, p, y = data
    scores = reduce(calibrant.predictions(z, y))
    calibration = refinement = 0.0
    for k in range(K):
        for n, c, a in binned(p[:, k].tolist(), (y == k).astype(int).tolist()):
            calibration += n / N * (c - a) ** 2
            refinement += n / N * a * (1 - a)
    m = murphy_brier(scores)
    assert (m.calibration, m.refinement) == pytest.approx((calibration, refinement), abs=1e-12)
    assert m.total == pytest.approx(m.calibration + m.refinement + m.residual + m.rest, abs=1e-12)
    kl = entropy = 0.0
    for n, c, a in binned(*top(p, y)):
        entropy += n / N * stats.entropy([a, 1 - a])
        kl += n / N * stats.entropy([a, 1 - a], [c, 1 - c])
    m = murphy_nll(scores)
    assert (m.calibration, m.refinement) == pytest.approx((kl, entropy), abs=1e-12)
    assert m.total == pytest.approx(sk.log_loss(y, p), abs=1e-12)


def test_ar_section_3_1_and_the_members() -> None:
    rng = np.random.default_rng(1)
    z, y = rng.normal(size=(3, 7, 4)), rng.integers(4, size=7)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    d = disagreement(torch.tensor(z), torch.tensor(y))
    for i in range(7):
        true = [p[m, i, y[i]] for m in range(3)]
        assert float(d.variance[i]) == pytest.approx(sum((t - sum(true) / 3) ** 2 for t in true) / (3 - 1), abs=1e-14)
        assert float(d.predictive_entropy[i]) == pytest.approx(stats.entropy(p[:, i].mean(0)), abs=1e-12)
        assert float(d.expected_entropy[i]) == pytest.approx(stats.entropy(p[:, i], axis=-1).mean(), abs=1e-12)
        votes = p[:, i].argmax(-1)
        differ = sum(votes[a] != votes[b] for a in range(3) for b in range(a)) / 3
        assert float(d.churn()[i]) == pytest.approx(differ, abs=1e-14)
    mean = calibrant.evaluate(z, y, intervals=False)
    assert mean["nll"].value == pytest.approx(sk.log_loss(y, p.mean(0), labels=range(4)), abs=1e-12)
    assert mean.extras["ensemble"]["variance"] == pytest.approx(float(d.variance.mean()), abs=1e-14)


@pytest.mark.parametrize(("n", "q"), [(1, 0.3), (7, 0.5), (40, 0.01), (300, 0.97)])
def test_de_moivre_1730(n: int, q: float) -> None:
    k = np.arange(n + 1)
    expected = (stats.binom.pmf(k, n, q) * abs(k - n * q)).sum()
    assert float(_mad(torch.tensor([float(n)]).double(), torch.tensor([q]).double())) == pytest.approx(expected)


def test_holm_1979() -> None:
    got = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert got == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
