"""Confidence models: laws over the table, TrustScore against loops, and features that tell more than logits."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from sklearn.metrics import roc_auc_score

import calibrant
from calibrant.errors import InputError, MapError
from calibrant.functional.scores import reduce
from calibrant.posthoc.confidence_model import ConfidenceMap, ConfidenceModel
from calibrant.posthoc.confidnet import ConfidNet, ConfidNetMap
from calibrant.posthoc.trust_score import TrustScore, TrustScoreMap, high_density
from calibrant.types import Predictions

SMALL = ConfidNet(hidden=16, layers=1, epochs=40, batch=32, learning_rate=0.01)
QUICK: dict[str, ConfidenceModel] = {"confidnet": SMALL, "trust_score": TrustScore()}
each = pytest.mark.parametrize("model", QUICK.values(), ids=QUICK)


def telling(n: int = 600, seed: int = 0, k: int = 3, d: int = 6) -> Predictions:
    """Logits that are as sure of errors as of hits; features that lie between the classes where the network guesses."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(k, (n,), generator=g)
    hard = torch.rand(n, generator=g) < 0.4
    said = torch.where(hard, torch.randint(k, (n,), generator=g), y)
    z = 3 * torch.nn.functional.one_hot(said, k) + torch.randn(n, k, generator=g)
    centre = 4 * torch.eye(k, d)
    f = torch.where(hard[:, None], centre.mean(0), centre[y]) + torch.randn(n, d, generator=g)
    return calibrant.predictions(z, y, features=f, split="test" if seed else "calibration")


@cache
def learnt(model: ConfidenceModel) -> ConfidenceMap:
    return model.fit(telling())


@each
def test_features_that_tell_more_rank_better(model: ConfidenceModel) -> None:
    new = telling(seed=1)
    before = calibrant.evaluate(new, replicates=200)
    after = calibrant.evaluate(learnt(model).predictions(new), replicates=200)
    assert before["auroc"].value < 0.6 < 0.75 < after["auroc"].low
    assert after["ece"].value < before["ece"].value and after["nll"].value < before["nll"].value


@each
def test_the_label_never_changes(model: ConfidenceModel) -> None:
    new = telling(seed=2)
    m = learnt(model)
    after = m.predictions(new)
    assert m.keeps_label and torch.equal(reduce(after).predicted, reduce(new).predicted)
    assert after.confidence is not None and bool(((after.confidence >= 0) & (after.confidence <= 1)).all())
    assert after.logits is not None and after.predicted is not None
    # the logits give the predicted class its new confidence too
    p = torch.softmax(after.logits, 1).gather(1, after.predicted[:, None])[:, 0]
    assert torch.allclose(p, after.confidence.clamp(1e-6, 1 - 1e-6), atol=1e-9)
    members = calibrant.predictions(torch.stack([new.logits] * 2), new.labels, features=new.features)
    assert torch.allclose(reduce(m.predictions(members)).confidence, after.confidence)
    assert model.fit(calibrant.predictions(members.logits, new.labels, features=new.features)).k is None


def test_trust_score_judges_a_top1_set_and_confidnet_says_why_it_does_not() -> None:
    new = telling(seed=3)
    scores = reduce(new)
    alone = calibrant.predictions(
        labels=new.labels, predicted=scores.predicted, confidence=scores.confidence, features=new.features
    )
    m = TrustScore().fit(telling())
    after = m.predictions(alone)
    assert after.logits is None
    assert torch.equal(reduce(after).confidence, reduce(m.predictions(new)).confidence)
    with pytest.raises(MapError, match="a top-1 file does not have them"):
        learnt(SMALL).predictions(alone)


def test_features_that_tell_nothing_do_not_cost_confidnet_the_ranking() -> None:
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(6000, 20, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
    p = calibrant.predictions(2 * z, y, features=torch.randn(6000, 64, generator=g))
    old, new = p.take(torch.arange(2000)), p.take(torch.arange(2000, 6000))
    before = calibrant.evaluate(new, intervals=False)
    m = ConfidNet().fit(old)
    after = calibrant.evaluate(m.predictions(new), intervals=False)
    assert after["auroc"].value > before["auroc"].value - 0.01
    assert after["nll"].value < before["nll"].value and after["ece"].value < before["ece"].value
    c = m.record.certificate
    assert c["held_out_auroc"] >= c["held_out_auroc_before"]


def test_the_held_out_auroc_is_that_of_scikit_learn() -> None:
    p = telling(600)
    assert p.logits is not None
    held = torch.randperm(600, generator=torch.Generator().manual_seed(SMALL.seed))[:120]  # a fifth
    right, said = p.logits.argmax(1) == p.labels, torch.softmax(p.logits.double(), 1).amax(1)
    before = SMALL.fit(p).record.certificate["held_out_auroc_before"]
    assert before == pytest.approx(roc_auc_score(right[held], said[held]))
    every_one_right = calibrant.predictions(p.logits, p.logits.argmax(1), features=p.features)
    assert SMALL.fit(every_one_right).record.certificate["held_out_auroc"] is None


@each
def test_bad_input_is_named(model: ConfidenceModel) -> None:
    p = telling()
    bare = calibrant.predictions(p.logits, p.labels)
    with pytest.raises(InputError, match=f"{model.name} needs features, .* predict MODEL --features"):
        model.fit(bare)
    m = model.fit(p)
    assert isinstance(m, ConfidenceMap)
    with pytest.raises(InputError, match=f"{model.name} needs features"):
        m.predictions(bare)
    with pytest.raises(MapError, match=f"{model.name} reads features"):
        m(p.logits)
    narrow = calibrant.predictions(p.logits, p.labels, features=p.features[:, :2])
    with pytest.raises(MapError, match="fitted on 6 features per item, these predictions have 2"):
        m.predictions(narrow)
    holes = p.features.clone()
    holes[7, 1] = torch.nan
    with pytest.raises(InputError, match="the features of row 7"):
        model.fit(Predictions(p.labels, p.logits, features=holes))


def test_settings_are_checked() -> None:
    for make, words in (
        (lambda: ConfidNet(epochs=0), "epochs=0 must be positive"),
        (lambda: ConfidNet(held_out=1.0), "held_out=1.0"),
        (lambda: TrustScore(alpha=1.0), "alpha=1.0"),
        (lambda: TrustScore(neighbours=0), "neighbours=0"),
    ):
        with pytest.raises(InputError, match=words):
            make()
    one = calibrant.predictions(torch.zeros(30, 2), torch.zeros(30, dtype=torch.long), features=torch.rand(30, 2))
    with pytest.raises(InputError, match="all calibration labels are the same"):
        TrustScore().fit(one)
    with pytest.raises(InputError, match="a top-1 file does not have"):
        ConfidNet().fit(
            calibrant.predictions(
                labels=one.labels, predicted=one.labels, confidence=torch.ones(30), features=torch.rand(30, 2)
            )
        )


def test_trust_score_against_loops() -> None:
    p, new = telling(80), telling(25, seed=5)
    m = TrustScore(alpha=0.2, neighbours=3, link="plain").fit(p)
    assert isinstance(m, TrustScoreMap) and p.features is not None and new.features is not None
    f, y = p.features.double().tolist(), p.labels.tolist()
    dense: list[tuple[list[float], int]] = []
    for c in range(3):
        rows = [i for i in range(len(y)) if y[i] == c]
        reach = {i: sorted(math.dist(f[i], f[j]) for j in rows if j != i)[2] for i in rows}
        kept = sorted(rows, key=lambda i: reach[i])[: len(rows) - math.floor(0.2 * len(rows))]
        dense += [(f[i], c) for i in kept]
    assert len(dense) == len(m.points)
    after = m.predictions(new)
    assert after.predicted is not None and after.confidence is not None
    for x, a, got in zip(
        new.features.double().tolist(), after.predicted.tolist(), after.confidence.tolist(), strict=True
    ):
        own = min(math.dist(x, point) for point, c in dense if c == a)
        other = min(math.dist(x, point) for point, c in dense if c != a)
        s = other / own
        assert got == pytest.approx(s / (1 + s), abs=1e-9)


def test_trust_score_fits_its_link_on_leave_one_out_scores() -> None:
    """Each item is at distance 0 from itself: a link fitted on such scores would call every hit certain."""
    m = TrustScore().fit(telling(400))
    assert isinstance(m, TrustScoreMap) and float(m.a) > 0
    new = telling(400, seed=6)
    after = reduce(m.predictions(new))
    assert abs(float(after.confidence.mean()) - float(after.correct.double().mean())) < 0.08
    assert m.record.certificate["scores"] == "leave-one-out"


def test_trust_score_degenerate_distances() -> None:
    points = torch.tensor([[0.0], [1.0], [1.0]])
    p = calibrant.predictions(torch.zeros(3, 3), torch.tensor([0, 1, 0]), features=points)
    m = TrustScore(link="plain").fit(p)
    assert isinstance(m, TrustScoreMap)
    x = torch.tensor([[1.0], [0.0], [0.5]], dtype=torch.float64)
    got = m.confidence(x, torch.tensor([0, 0, 2]))
    assert got.tolist() == pytest.approx([0.5, 1.0, 0.0], abs=1e-9)  # 0/0; 1/0; a class that was never seen
    assert high_density(points.double(), p.labels, 0.9, 1).tolist().count(True) == 2  # a class keeps its last item


def test_a_score_that_ranks_errors_first_is_flagged() -> None:
    """Labels alternate along a line, so the nearest neighbour always has the other label."""
    n = 60
    y = torch.arange(n) % 2
    said = torch.where(torch.arange(n) % 3 == 0, 1 - y, y)
    p = calibrant.predictions(
        2.0 * torch.nn.functional.one_hot(said, 2).double(), y, features=torch.arange(n)[:, None].float()
    )
    m = calibrant.fit("trust_score", p)
    assert isinstance(m, TrustScoreMap) and float(m.a) == 1.0 and float(m.b) == 0.0
    assert not m.record.guard["ok"] and any("errors have the higher scores" in r for r in m.record.guard["reasons"])


def test_confidnet_regresses_the_true_class_probability() -> None:
    p = telling(600)
    m = SMALL.fit(p)
    assert isinstance(m, ConfidNetMap) and p.features is not None and p.logits is not None
    c = m.record.certificate
    assert c["held_out_loss"] < 0.8 * c["held_out_loss_before"] and 0 < c["epoch"] <= c["epochs"] <= 40
    # the network is the one that torch.nn would build, added to the log-odds of the highest of the three classes
    net = torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).double()
    torch.nn.utils.vector_to_parameters(m.theta, net.parameters())
    prob = torch.softmax(p.logits.double(), 1)
    x = torch.cat([p.features.double(), prob.sort(1, descending=True).values.log()], 1)
    with torch.no_grad():
        h = m.a * torch.logit(prob.amax(1)) + m.b + net((x - m.mean) / m.scale)[:, 0]
    assert torch.allclose(m.predictions(p).confidence, torch.sigmoid(h), atol=1e-9)
