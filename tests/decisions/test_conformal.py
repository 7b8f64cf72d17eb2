"""Prediction sets: the papers' formulas in naive loops, coverage, its Beta distribution, ties and refusals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import beta, kstest

import calibrant
from benchmarks import decide as peers
from calibrant.decisions.conformal import METHODS, PredictionSets, scores, uniform
from calibrant.decisions.quantile import needed, place, quantile
from calibrant.errors import InputError, UnknownNameError


def sample(n: int, k: int, seed: int, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(n, k, generator=g, dtype=torch.float64)
    return z, torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]


def naive_scores(p: list[float], u: float, method: str, penalty: float, k_reg: int) -> list[float]:
    """The scores of every class of one item."""
    found, before = [0.0] * len(p), 0.0
    for rank, k in enumerate(sorted(range(len(p)), key=lambda j: (-p[j], j)), start=1):
        if method == "lac":
            found[k] = 1 - p[k]
        elif method == "topk":
            found[k] = float(rank)
        else:
            before += p[k]
            found[k] = before - (1 - u) * p[k] + (penalty * max(0, rank - k_reg) if method == "raps" else 0.0)
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("randomised", [False, True])
@pytest.mark.parametrize(("k", "n"), [(2, 60), (7, 90), (1000, 25)])
def test_sets_equal_the_papers(method: str, randomised: bool, k: int, n: int) -> None:
    z, y = sample(n, k, k)
    z[::5] = z[::5].round()  # classes of equal probability
    settings = {"penalty": 0.05, "k_reg": 2} if method == "raps" else {}
    rule = calibrant.decide(z, y, set_coverage=0.8, method=method, randomised=randomised, **settings)
    u = uniform(z)[:, 0].tolist() if randomised else [0.0] * n
    p = torch.softmax(z, 1).tolist()
    s = [naive_scores(p[i], u[i], method, 0.05, 2) for i in range(n)]
    ranked = sorted((s[i][int(y[i])], u[i]) for i in range(n))
    q = ranked[math.ceil(0.8 * (n + 1)) - 1]
    expected = [[(s[i][c], u[i]) <= q for c in range(k)] for i in range(n)]
    d = rule(z)
    assert d.sets is not None and d.sets.tolist() == expected
    assert torch.equal(d.predicted, z.argmax(1))
    assert d.accepted.tolist() == [sum(row) == 1 and row[int(a)] for row, a in zip(expected, d.predicted, strict=True)]
    assert rule.record.certificate["size"] == pytest.approx(np.mean(np.sum(expected, 1)))


@pytest.mark.parametrize("scale", [2.0, 400.0])  # the last: saturated, one class has all the probability
def test_conservative_aps_includes_the_class_that_crosses_the_quantile(scale: float) -> None:
    """Romano 2020: take the likeliest classes until they hold more than q; q from what came before the truth."""
    z, y = sample(4000, 6, 11, scale)
    p = torch.softmax(z, 1).tolist()
    orders = [sorted(range(6), key=lambda k, row=row: (-row[k], k)) for row in p]
    before = [sum(p[i][k] for k in orders[i][: orders[i].index(int(y[i]))]) for i in range(1000)]
    q = sorted(before)[math.ceil(0.9 * 1001) - 1]
    rule = calibrant.decide(z[:1000], y[:1000], set_coverage=0.9, method="aps")
    sets = rule(z[1000:]).sets
    assert sets is not None
    for row, order, found in zip(p[1000:], orders[1000:], sets.tolist(), strict=True):
        held, total = set(), 0.0
        for k in order:
            held.add(k)
            total += row[k]
            if total > q + 1e-12:
                break
        assert {k for k in range(6) if found[k]} == held
    covered = float(sets.gather(1, y[1000:, None]).double().mean())
    right = float((z.argmax(1) == y)[1000:].double().mean())
    assert covered == pytest.approx(max(0.9, right), abs=0.025)  # no more than never being empty costs


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("randomised", [False, True])
def test_coverage_reaches_its_level(method: str, randomised: bool) -> None:
    """2,000 calibration sets of 50 items drawn from one pool; the coverage of each is over the whole pool."""
    z, y = sample(40_000, 5, 1, 1.5)
    u = uniform(z) if randomised else torch.zeros(len(z), 1)
    own = scores(torch.softmax(z, 1), u, method, 0.02, 1).gather(1, y[:, None])[:, 0].numpy()
    chance, rng, covered = u[:, 0].numpy(), np.random.default_rng(2), []
    by_pair = np.lexsort((chance, own))
    place_of = np.empty(len(own), int)
    place_of[by_pair] = np.arange(len(own))
    for _ in range(2000):
        i = rng.integers(0, len(own), 50)
        q, tie = quantile(own[i], chance[i], 0.8, None)
        covered.append(float(((own < q) | ((own == q) & (chance <= tie))).mean()) if method == "topk" else q)
    if method != "topk":
        covered = np.searchsorted(np.sort(own), covered, side="right") / len(own)
    r = place(50, 0.8, None)
    mean = np.mean(covered)
    assert mean >= 0.8 - 0.005
    if randomised or method != "topk":  # no ties: the exact Beta distribution
        assert mean == pytest.approx(r / 51, abs=0.005)
        assert kstest(covered, beta(r, 51 - r).cdf).pvalue > 1e-4


def test_the_beta_distribution_is_printed() -> None:
    z, y = sample(999, 6, 3)
    rule = calibrant.decide(z, y, set_coverage=0.9)
    assert rule.record.certificate["beta"] == (900, 100)
    assert rule.record.certificate["range"] == pytest.approx(beta(900, 100).ppf([0.025, 0.975]).tolist())
    assert "Beta(900, 100)" in rule.sentence and "classes on average" in rule.sentence
    assert not rule.sentence.endswith("or more because of ties")
    z, y = sample(999, 6, 3, 40.0)  # right 97% of the time: the quantile of aps is 0, and most items are there
    assert calibrant.decide(z, y, set_coverage=0.9, method="aps").sentence.endswith("or more because of ties")
    exact = calibrant.decide(z, y, set_coverage=0.9, method="aps", randomised=True)
    assert not exact.sentence.endswith("or more because of ties")


def test_a_guarantee_is_kept_by_all_but_its_share_of_calibration_sets() -> None:
    rng, n = np.random.default_rng(4), 300
    worse = 0
    for _ in range(2000):
        q, _ = quantile(rng.random(n), np.ones(n), 0.9, 0.95)
        worse += q < 0.9  # uniform scores: q is the coverage
    assert worse / 2000 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
    assert worse / 2000 > 0.02  # and not by far
    assert place(needed(0.9, 0.95), 0.9, 0.95) <= needed(0.9, 0.95)
    assert place(needed(0.9, 0.95) - 1, 0.9, 0.95) > needed(0.9, 0.95) - 1
    assert needed(0.9, None) == 9 and place(9, 0.9, None) == 9 and place(8, 0.9, None) == 9


def test_by_class_and_by_group_cover_in_each() -> None:
    z, y = sample(40_000, 4, 5)
    z = torch.where((y == 0)[:, None], -z, z)  # class 0 is badly predicted
    group = np.where(np.arange(len(y)) % 3 == 0, "hard", "easy")
    z = torch.where(torch.tensor(group == "hard")[:, None], z.flip(1), z)
    first, rest = slice(0, 20_000), slice(20_000, None)
    plain = calibrant.decide(z[first], y[first], set_coverage=0.9)(z[rest]).sets
    own = calibrant.decide(z[first], y[first], set_coverage=0.9, by="class")(z[rest]).sets
    assert plain is not None and own is not None
    hit = [s.gather(1, y[rest][:, None])[:, 0] for s in (plain, own)]
    assert float(hit[0][y[rest] == 0].double().mean()) < 0.8
    for c in range(4):
        assert float(hit[1][y[rest] == c].double().mean()) == pytest.approx(0.9, abs=0.02)
    rule = calibrant.decide(calibrant.predictions(z[first], y[first], group=group[first]), set_coverage=0.9, by="group")
    sets = rule(z[rest], group=group[rest]).sets
    assert sets is not None
    for name in ("hard", "easy"):
        mine = torch.tensor(group[rest] == name)
        assert float(sets[mine].gather(1, y[rest][mine][:, None]).double().mean()) == pytest.approx(0.9, abs=0.02)


def test_members_and_batches_change_nothing(tmp_path: Path) -> None:
    z, y = sample(300, 5, 6)
    members = torch.stack([z, z + 0.1])
    rule = calibrant.decide(members, y, set_coverage=0.9, method="aps", randomised=True)
    again = calibrant.load(rule.save(tmp_path / "rule"))
    assert isinstance(again, PredictionSets)
    whole, parts = rule(members).sets, [again(members[:, i : i + 7]).sets for i in range(0, 300, 7)]
    assert whole is not None and torch.equal(whole, torch.cat([p for p in parts if p is not None]))
    u = uniform(z)
    assert u.min() >= 0 and u.max() < 1 and kstest(u[:, 0].numpy(), "uniform").pvalue > 1e-3


def test_too_few_items() -> None:
    z, y = sample(8, 3, 7)
    with pytest.raises(InputError, match="8 items are too few to promise 90%: 9 are needed"):
        calibrant.decide(z, y, set_coverage=0.9)
    with pytest.raises(InputError, match="1 items of each class are too few .* 9 are needed"):
        calibrant.decide(3 * torch.eye(3), torch.arange(3), set_coverage=0.9, by="class")
    z, y = sample(60, 3, 8)
    y[:] = torch.arange(60) % 2
    y[0] = 2
    with pytest.warns(calibrant.CalibrantWarning, match=r"1 of 3 classes \(2\) have fewer than the 9 items"):
        rule = calibrant.decide(z, y, set_coverage=0.9, by="class")
    sets = rule(z).sets
    assert sets is not None and bool(sets[:, 2].all())


def test_bad_input() -> None:
    z, y = sample(60, 3, 9)
    top = calibrant.predictions(labels=y, predicted=y, confidence=torch.rand(60))
    with pytest.raises(InputError, match="aps sets need the probabilities of all classes, and this is a top-1 set"):
        calibrant.decide(top, set_coverage=0.9, method="aps")
    with pytest.raises(InputError, match="needs the probabilities of all classes"):
        calibrant.decide(z, y, set_coverage=0.9).decisions(top)
    with pytest.raises(UnknownNameError, match="did you mean 'raps'"):
        calibrant.decide(z, y, set_coverage=0.9, method="rasp")
    for asked, message in (
        ({"set_coverage": 1.0}, "set_coverage=1.0 must lie between 0 and 1"),
        ({"set_coverage": 0.9, "method": "lac", "penalty": 1.0}, "belong to raps"),
        ({"set_coverage": 0.9, "method": "raps", "penalty": -1.0}, "0 or more"),
        ({"accuracy": 0.9, "method": "aps"}, "method does not belong to accuracy"),
    ):
        with pytest.raises(InputError, match=message):
            calibrant.decide(z, y, **asked)


@pytest.mark.parametrize(("library", "method"), [("mapie", "lac"), ("mapie", "topk"), ("torchcp", "lac")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchCP's own
def test_sets_are_those_of_other_libraries(library: str, method: str) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    z, y = sample(2000, 8, 0)
    theirs = getattr(peers, library)()[method](z[:1000], y[:1000])(z[1000:])
    ours = calibrant.decide(z[:1000], y[:1000], set_coverage=0.9, method=method)(z[1000:]).sets
    assert ours is not None and torch.equal(ours, torch.as_tensor(theirs).bool())
