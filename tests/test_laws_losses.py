"""Laws of criteria, penalties, targets and transforms, run over their whole tables.

A new entry needs one reference case here: its formula as a plain loop over items and classes in float64.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses import LOSSES, PENALTIES
from calibrant.protocols import Batch, BatchTransform, Criterion, Penalty, Stateful, TargetPolicy
from calibrant.targets import TARGETS, Levels
from calibrant.transforms import TRANSFORMS

N, K = 7, 5


def probabilities(row: list[float]) -> list[float]:
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    return [power / math.fsum(powers) for power in powers]


def looped(weight: Callable[[list[float], int], float], logits: Tensor, q: Tensor) -> list[float]:
    """Σ_k q_k · w(p, k) · (−log p_k), item by item."""
    out = []
    for row, target in zip(logits.tolist(), q.tolist(), strict=True):
        p = probabilities(row)
        out.append(math.fsum(q_k * weight(p, k) * -math.log(p[k]) for k, q_k in enumerate(target)))
    return out


LOSS_CASES: dict[str, list[tuple[dict[str, Any], Callable[[list[float], int], float]]]] = {
    "cross_entropy": [({}, lambda p, k: 1.0)],
    "focal": [
        ({"gamma": 3.0}, lambda p, k: (1 - p[k]) ** 3),
        ({"gamma": 0.5}, lambda p, k: (1 - p[k]) ** 0.5),
        ({"gamma": 3.0, "steps": ((0.2, 5.0),)}, lambda p, k: (1 - p[k]) ** (5 if p[k] < 0.2 else 3)),
        (
            {"gamma": 1.0, "steps": ((0.1, 5.0), (0.3, 3.0))},
            lambda p, k: (1 - p[k]) ** (5 if p[k] < 0.1 else 3 if p[k] < 0.3 else 1),
        ),
    ],
    "inverse_focal": [({"gamma": 2.0}, lambda p, k: (1 + p[k]) ** 2)],
    "dual_focal": [
        ({"gamma": 5.0}, lambda p, k: (1 - p[k] + max([0.0, *(v for v in p if v < p[k])])) ** 5),
    ],
}
NEUTRAL = {"focal": {"gamma": 0.0}, "inverse_focal": {"gamma": 0.0}, "dual_focal": {"gamma": 0.0}, "cross_entropy": {}}
CASES = [(name, settings, weight) for name, cases in LOSS_CASES.items() for settings, weight in cases]


@pytest.fixture
def logits() -> Tensor:
    return 3 * torch.randn(N, K, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def q() -> Tensor:
    return torch.softmax(2 * torch.randn(N, K, dtype=torch.float64, generator=torch.Generator().manual_seed(2)), -1)


@pytest.fixture
def batch(q: Tensor) -> Batch:
    return Batch(q, torch.tensor([0, 1, 2, 3, 4, 0, 1]), torch.arange(N))


def per_item(name: str, **settings: Any) -> Criterion:
    """The loss as the training loop uses it."""
    return LOSSES[name](**settings, reduction="none")


def hot(labels: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(labels, K).double()


def test_every_entry_has_its_case() -> None:
    assert set(LOSS_CASES) == set(LOSSES) == set(NEUTRAL), (
        "a loss needs its formula in LOSS_CASES and its line in NEUTRAL"
    )
    assert set(PENALTY_CASES) == set(PENALTIES)


@pytest.mark.parametrize(("name", "settings", "weight"), CASES)
def test_loss_is_its_formula(name: str, settings: dict[str, Any], weight: Any, logits: Tensor, q: Tensor) -> None:
    for target in (q, hot(q.argmax(-1))):
        value = per_item(name, **settings)(logits, target)
        assert value.shape == (N,)
        torch.testing.assert_close(value, torch.tensor(looped(weight, logits, target), dtype=torch.float64))


@pytest.mark.parametrize(("name", "settings", "weight"), CASES)
def test_loss_gradient(name: str, settings: dict[str, Any], weight: Any, logits: Tensor, q: Tensor) -> None:
    criterion = per_item(name, **settings)
    assert torch.autograd.gradcheck(lambda z: criterion(z, q), logits.requires_grad_())


@pytest.mark.parametrize("name", LOSSES)
def test_neutral_setting_is_cross_entropy_to_the_bit(name: str, logits: Tensor, q: Tensor) -> None:
    reference = per_item("cross_entropy")
    neutral = per_item(name, **NEUTRAL[name])
    for dtype in (torch.float32, torch.float64):
        z = logits.to(dtype).requires_grad_()
        there, here = reference(z, q.to(dtype)), neutral(z, q.to(dtype))
        assert torch.equal(there, here)
        torch.testing.assert_close(*(torch.autograd.grad(loss.sum(), z)[0] for loss in (there, here)))


TORCH = torch.nn.functional.cross_entropy
WEIGHTS = (0.5, 1.0, 2.0, 3.0, 0.1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_cross_entropy_is_called_like_torchs(reduction: Any, weights: Any, logits: Tensor, q: Tensor) -> None:
    """Labels with some to ignore, soft targets, images of labels with the classes at axis 1 or last."""
    loss = LOSSES["cross_entropy"](weight=weights, reduction=reduction, ignore_index=3)
    options = {"weight": None if weights is None else torch.tensor(weights).double(), "reduction": reduction}
    labels = torch.tensor([0, 1, 2, 3, 4, 3, 1])
    torch.testing.assert_close(loss(logits, labels), TORCH(logits, labels, ignore_index=3, **options))
    torch.testing.assert_close(loss(logits, q), TORCH(logits, q, **options))
    images, maps = torch.randn(2, K, 3, 4, dtype=torch.float64), torch.randint(0, K, (2, 3, 4))
    expected = TORCH(images, maps, ignore_index=3, **options)
    torch.testing.assert_close(loss(images, maps), expected)
    torch.testing.assert_close(loss(images.movedim(1, -1), maps), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_a_scalar_and_labels_are_one_hot_targets(name: str, logits: Tensor) -> None:
    labels = torch.tensor([0, 1, 2, 3, 4, 3, -100])
    loss, items = LOSSES[name](), per_item(name)(logits, hot(labels.clamp_min(0)))
    assert loss(logits, labels).shape == ()
    torch.testing.assert_close(loss(logits, labels), items[:6].mean())
    torch.testing.assert_close(loss(logits, labels.to(torch.int16)), items[:6].mean())
    assert float(loss(logits, torch.full((N,), -100))) == 0.0


def test_compiled_losses_are_one_graph(logits: Tensor, q: Tensor) -> None:
    """All of them together: compiling takes longer than what is compiled."""
    torch._dynamo.reset()
    losses = [LOSSES["cross_entropy"](), *(make(weight=WEIGHTS) for make in LOSSES.values())]

    def each(z: Tensor, target: Tensor) -> Tensor:
        return torch.stack([loss(z, target) for loss in losses])

    compiled = torch.compile(each, fullgraph=True, backend="eager")
    for target in (q, torch.tensor([0, 1, 2, 3, 4, 3, -100])):
        z = logits.clone().requires_grad_()
        values = [f(z, target) for f in (compiled, each)]
        torch.testing.assert_close(*values)
        factors = torch.arange(1.0, len(losses) + 1, dtype=torch.float64)
        torch.testing.assert_close(*(torch.autograd.grad(value @ factors, z)[0] for value in values))


def test_a_loss_says_what_it_cannot_take(logits: Tensor) -> None:
    with pytest.raises(InputError, match="reduction='average' is unknown"):
        LOSSES["focal"](reduction="average")
    with pytest.raises(InputError, match="label 5 with classes=5"):
        LOSSES["focal"]()(logits, torch.full((N,), 5))
    with pytest.raises(InputError, match="axis 1 and at the last"):
        LOSSES["focal"]()(torch.randn(2, 3, 3), torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.parametrize("name", LOSSES)
def test_class_weights_scale_their_class(name: str, logits: Tensor) -> None:
    weights = (0.5, 1.0, 2.0, 3.0, 0.25)
    labels = torch.tensor([0, 1, 2, 3, 4, 2, 3])
    plain, weighted = per_item(name), per_item(name, weight=weights)
    torch.testing.assert_close(
        weighted(logits, hot(labels)), plain(logits, hot(labels)) * torch.tensor(weights).double()[labels]
    )
    with pytest.raises(InputError, match="4 class weights for 5 classes"):
        LOSSES[name](weight=weights[:4])(logits, hot(labels))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("name", "settings", "weight"), CASES)
def test_loss_is_stable_at_the_ends(name: str, settings: dict[str, Any], weight: Any, dtype: torch.dtype) -> None:
    """p → 0 and p → 1 (to within nothing), one-hot and smooth targets: loss and gradient stay finite."""
    rows = [[200.0, 0, 0, 0, -200], [-200.0, 200, 0, 0, 0], [0.0, 0, 0, 0, 0], [30.0, 0, 0, 0, 0], [1e4, -1e4, 0, 0, 0]]
    for smooth in (0.0, 0.1):
        for label in range(K):
            z = torch.tensor(rows, dtype=dtype, requires_grad=True)
            target = torch.full((len(rows), K), smooth / K)
            target[:, label] += 1 - smooth
            loss = per_item(name, **settings)(z, target)
            loss.sum().backward()
            assert loss.dtype == torch.float32
            assert loss.isfinite().all()
            assert z.grad is not None
            assert z.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_an_impossible_class_costs_nothing_unless_it_is_the_target(name: str) -> None:
    z = torch.tensor([[2.0, 1.0, -math.inf, 0.0, 0.5]], requires_grad=True)
    loss = LOSSES[name]()(z, hot(torch.tensor([0])).float())
    loss.sum().backward()
    assert loss.isfinite().all()
    assert z.grad is not None
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_shapes_that_disagree_are_named(name: str, logits: Tensor) -> None:
    with pytest.raises(InputError, match=r"\(7, 4\)"):
        LOSSES[name]()(logits, torch.zeros(N, 4))


# ---------------------------------------------------------------------------------------------------- penalties


def loop_lp(logits: Tensor, labels: list[int]) -> float:
    return 0.01 * math.fsum(math.fsum(abs(v) for v in row) for row in logits.tolist()) / N


def loop_l3(logits: Tensor, labels: list[int]) -> float:
    return 0.5 * math.fsum(math.fsum(abs(v) ** 3 for v in row) ** (1 / 3) for row in logits.tolist()) / N


def loop_entropy(logits: Tensor, labels: list[int]) -> float:
    return 0.1 * math.fsum(p * math.log(p) for row in logits.tolist() for p in probabilities(row)) / N


def loop_mmce(logits: Tensor, labels: list[int], balanced: bool = False) -> float:
    r = [max(probabilities(row)) for row in logits.tolist()]
    c = [int(row.index(max(row)) == y) for row, y in zip(logits.tolist(), labels, strict=True)]
    share = [(sum(c) if c_i else N - sum(c)) if balanced else N for c_i in c]
    total = math.fsum(
        (c[i] - r[i]) / share[i] * (c[j] - r[j]) / share[j] * math.exp(-abs(r[i] - r[j]) / 0.4)
        for i in range(N)
        for j in range(N)
    )
    return 2.0 * math.sqrt(total)


def loop_ranking(logits: Tensor, labels: list[int], kappa: Callable[[list[float]], float] = max) -> float:
    """The second visit, with the history HISTORY left by the first."""
    k = [kappa(probabilities(row)) for row in logits.tolist()]
    out = []
    for i in range(N):
        j = (i + 1) % N
        gap = HISTORY[i] - HISTORY[j]
        g = (gap > 0) - (gap < 0)
        out.append(max(0.0, -g * (k[i] - k[j]) + abs(gap)))
    return math.fsum(out) / N


def margin(p: list[float]) -> float:
    first, second = sorted(p, reverse=True)[:2]
    return first - second


def certainty(p: list[float]) -> float:
    return 1 + math.fsum(v * math.log(v) for v in p) / math.log(K)


HISTORY = [1.0, 0.5, 0.0, 1.0, 0.75, 0.25, 0.5]
"""Share of four past visits in which each item was right."""

PENALTY_CASES: dict[str, list[tuple[dict[str, Any], Callable[..., float]]]] = {
    "lp_norm": [({"weight": 0.01, "p": 1.0}, loop_lp), ({"weight": 0.5, "p": 3.0}, loop_l3)],
    "entropy": [({"weight": 0.1}, loop_entropy)],
    "mmce": [
        ({"weight": 2.0}, loop_mmce),
        ({"weight": 2.0, "balanced": True}, lambda z, y: loop_mmce(z, y, balanced=True)),
    ],
    "ranking": [
        ({"weight": 1.0}, loop_ranking),
        ({"weight": 1.0, "confidence": "margin"}, lambda z, y: loop_ranking(z, y, margin)),
        ({"weight": 1.0, "confidence": "entropy"}, lambda z, y: loop_ranking(z, y, certainty)),
    ],
}
PENALTY_LIST = [(name, settings, loop) for name, cases in PENALTY_CASES.items() for settings, loop in cases]


def made(name: str, settings: dict[str, Any]) -> Any:
    """A penalty with a past, where it keeps one."""
    penalty = PENALTIES[name](**settings)
    if isinstance(penalty, Stateful):
        seen = torch.full((N,), 4, dtype=torch.int32)
        penalty.load({"seen": seen, "correct": (torch.tensor(HISTORY) * 4).int()})
    return penalty


@pytest.mark.parametrize(("name", "settings", "loop"), PENALTY_LIST)
def test_penalty_is_its_formula(name: str, settings: Any, loop: Any, logits: Tensor, batch: Batch) -> None:
    assert batch.labels is not None
    value = made(name, settings)(logits, batch)
    assert value.shape == ()
    assert float(value) == pytest.approx(loop(logits, batch.labels.tolist()), rel=1e-6)


@pytest.mark.parametrize(("name", "settings", "loop"), PENALTY_LIST)
def test_penalty_gradient(name: str, settings: Any, loop: Any, logits: Tensor, batch: Batch) -> None:
    assert torch.autograd.gradcheck(lambda z: made(name, settings)(z, batch), logits.requires_grad_())


@pytest.mark.parametrize("name", PENALTIES)
def test_no_weight_is_no_penalty(name: str, logits: Tensor, batch: Batch) -> None:
    value = made(name, {"weight": 0.0})(logits.requires_grad_(), batch)
    assert value.item() == 0.0
    value.backward()
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("name", "settings", "loop"), PENALTY_LIST)
def test_penalty_is_stable_at_the_ends(name: str, settings: Any, loop: Any, dtype: torch.dtype) -> None:
    sure = torch.zeros(N, K)
    sure[torch.arange(N), torch.arange(N) % K] = 200.0
    for z in (sure, -sure, torch.zeros(N, K), sure * torch.tensor([1.0, -1, 1, -1, 1, -1, 0])[:, None]):
        logits = z.to(dtype).requires_grad_()
        value = made(name, settings)(logits, Batch(torch.full((N, K), 1 / K), torch.arange(N) % K, torch.arange(N)))
        value.backward()
        assert value.isfinite()
        assert logits.grad is not None
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "settings"), [("lp_norm", {}), ("entropy", {}), ("mmce", {}), ("mmce", {"balanced": True})]
)
def test_a_weight_of_two_is_two_items(name: str, settings: Any, logits: Tensor, batch: Batch) -> None:
    assert batch.labels is not None
    twice = torch.tensor([0, 0, 1, 2, 3, 4, 5, 6])
    penalty, weight = PENALTIES[name](**settings), torch.tensor([2.0, 1, 1, 1, 1, 1, 1])
    weighted = penalty(logits, Batch(batch.q, batch.labels, batch.index, weight))
    torch.testing.assert_close(weighted, penalty(logits[twice], Batch(batch.q[twice], batch.labels[twice], twice)))


@pytest.mark.parametrize("name", PENALTIES)
def test_a_batch_in_which_nothing_counts_asks_for_nothing(name: str, logits: Tensor, batch: Batch) -> None:
    z = logits.clone().requires_grad_()
    found = PENALTIES[name]()(z, Batch(batch.q, batch.labels, batch.index, torch.zeros(len(z))))
    found.backward()
    assert z.grad is not None and abs(float(found.detach())) < 1e-12 and float(z.grad.abs().max()) < 1e-12


@pytest.mark.parametrize("name", ["mmce", "ranking"])
def test_mixed_labels_are_refused(name: str, logits: Tensor, q: Tensor) -> None:
    with pytest.raises(InputError, match="mixed"):
        PENALTIES[name]()(logits, Batch(q, None, torch.arange(N)))


def test_penalties_take_the_labels_alone(logits: Tensor, batch: Batch) -> None:
    assert batch.labels is not None
    for name in ("lp_norm", "entropy", "mmce"):
        torch.testing.assert_close(PENALTIES[name]()(logits, batch.labels), PENALTIES[name]()(logits, batch))
    with pytest.raises(InputError, match="history by item"):
        PENALTIES["ranking"]()(logits, batch.labels)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- tables and their protocols


def test_tables_speak_their_protocols() -> None:
    assert all(isinstance(make(), Criterion) for make in LOSSES.values())
    assert all(isinstance(make(), Penalty) for make in PENALTIES.values())
    assert all(isinstance(make(classes=K), TargetPolicy) for make in TARGETS.values())
    assert all(isinstance(transform(name), BatchTransform) for name in TRANSFORMS)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_a_module_without_state(name: str, logits: Tensor) -> None:
    """It sits in a model, moves, prints, is copied and pickled, and adds nothing to the state of the model."""
    loss = LOSSES[name](weight=torch.tensor(WEIGHTS))
    model = torch.nn.Sequential(torch.nn.Linear(2, K))
    model.loss = loss
    assert model.state_dict().keys() == torch.nn.Sequential(torch.nn.Linear(2, K)).state_dict().keys()
    assert type(loss).__name__ in str(model.to("cpu").train()) and "weight=(0.5" in repr(loss)
    labels = torch.tensor([0, 1, 2, 3, 4, 3, 1])
    for again in (copy.deepcopy(model).loss, pickle.loads(pickle.dumps(loss)), loss.double()):
        assert torch.equal(again(logits, labels), loss(logits, labels))
    assert len({loss, LOSSES[name]()}) == 2


def policy(name: str) -> Any:
    if name != "ar_adals":
        return TARGETS[name](classes=K)
    return TARGETS[name](classes=K, levels=2, given=Levels(torch.tensor([0, 1] * 4), torch.tensor([0, 1])))


@pytest.mark.parametrize("name", TARGETS)
def test_soft_targets_are_distributions_with_the_label_on_top(name: str) -> None:
    labels = torch.tensor([0, 4, 2, -1])
    q = policy(name)(labels, torch.arange(4))
    assert q.shape == (4, K)
    torch.testing.assert_close(q.sum(-1), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert q[:3].argmax(-1).tolist() == [0, 4, 2]


@pytest.mark.parametrize("name", TARGETS)
def test_targets_at_their_neutral_setting_are_one_hot_to_the_bit(name: str) -> None:
    neutral = {"smoothing": {"epsilon": 0.0}}.get(name, {})
    target = TARGETS[name](classes=K, **neutral) if name != "ar_adals" else policy(name)
    labels = torch.tensor([0, 4, 2])
    assert torch.equal(target(labels, torch.arange(3)), torch.nn.functional.one_hot(labels, K).float())


def transform(name: str, **settings: Any) -> Any:
    if name == "ccat":
        settings = {"attack": lambda model, x, labels: x + 0.005 * x.sign(), **settings}
    return TRANSFORMS[name](**settings)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_keep_shape_and_mass_and_depend_on_the_generator_alone(name: str) -> None:
    x, q = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.eye(6)
    net = torch.nn.Identity()
    before = torch.get_rng_state()
    made = [transform(name)(net, x, q, torch.arange(6), torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), before)
    assert made[0][0].shape == x.shape
    torch.testing.assert_close(made[0][1].sum(-1), torch.ones(6))
    assert all(torch.equal(a, b) for a, b in zip(made[0], made[1], strict=True))
    if name != "ccat":
        assert not torch.equal(made[0][0], made[2][0])


@pytest.mark.parametrize(
    ("name", "settings"), [("mixup", {"alpha": 0.0}), ("cutmix", {"probability": 0.0}), ("ccat", {"fraction": 0.0})]
)
def test_transforms_at_their_neutral_setting_do_nothing(name: str, settings: dict[str, float]) -> None:
    x, q = torch.randn(4, 1, 6, 6), torch.eye(4)
    out = transform(name, **settings)(torch.nn.Identity(), x, q, torch.arange(4), torch.Generator())
    assert torch.equal(out[0], x)
    assert torch.equal(out[1], q)
