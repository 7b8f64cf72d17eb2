"""Each attack against its equation: naive loops in float64, closed forms, and ensembles."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import DDN, FGSM, PGD, CarliniWagner, FrequencyFGSM, assess, attack_success_rate
from calibrant.attacks.measures import median_distance
from calibrant.ensembles.deep import DeepEnsemble
from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.pep import PEP
from calibrant.errors import InputError
from tests.attacks.conftest import Victim


def test_fgsm_is_the_sign_of_the_cross_entropys_gradient(victim: Victim) -> None:
    """Goodfellow 2015, in float64 with torch's own cross-entropy, also for misclassified items."""
    model, attack = copy.deepcopy(victim.model).double(), FGSM(bounds=victim.bounds, epsilon=0.03)
    own = model(victim.x.double()).argmax(-1)
    for labels in (None, (own + 1) % 10):
        x = victim.x.double().requires_grad_()
        loss = nn.functional.cross_entropy(model(x), own if labels is None else labels, reduction="sum")
        [gradient] = torch.autograd.grad(loss, x)
        pixel = (x.detach() * 0.4 + 0.3 + 0.03 * gradient.sign()).clamp(0, 1)
        torch.testing.assert_close(attack(model, x.detach(), labels) * 0.4 + 0.3, pixel, atol=1e-9, rtol=0)


def test_fgsm_moves_items_whose_confidence_rounds_to_one() -> None:
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[400.0, 0.0], [0.0, 400.0]]))
    x = torch.tensor([[0.9, 0.1]])
    assert torch.softmax(model(x), -1).max() == 1.0
    torch.testing.assert_close(FGSM(epsilon=0.05)(model, x), torch.tensor([[0.85, 0.15]]))


class Window(nn.Module):
    """A network that predicts the other class only from 0.3 to 0.5."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x), 1 - 10 * (x - 0.4).abs()], 1)


def test_fgsm_uses_the_whole_budget_even_if_a_smaller_one_would_succeed() -> None:
    result = FGSM(epsilon=1.0).run(Window(), torch.zeros(1, 1))
    assert result.adversarial.item() == 1.0 and not result.success.item()


@pytest.mark.parametrize("maximise", ["loss", "confidence"])
def test_pgd_is_projected_ascent(maximise: Any, victim: Victim) -> None:
    """Madry 2018: x ← Π(x + α·sign ∇ −log p_y); Stutz 2020 climbs max_{k ≠ y} log p_k. Both by hand."""
    attack = PGD(bounds=victim.bounds, epsilon=0.05, iterations=4, maximise=maximise, random_start=False)
    ours = attack.run(victim.model, victim.x, victim.y).adversarial * 0.4 + 0.3
    start = victim.x * 0.4 + 0.3
    point = start.clone()
    rows = torch.arange(len(point))
    for _ in range(4):
        point = point.detach().requires_grad_()
        p = torch.softmax(victim.model((point - 0.3) / 0.4), -1)
        others = p.clone()
        others[rows, victim.y] = 0
        climbed = others.amax(-1).log() if maximise == "confidence" else -p[rows, victim.y].log()
        [gradient] = torch.autograd.grad(climbed.sum(), point)
        point = (start + (point + 2.5 * 0.05 / 4 * gradient.sign() - start).clamp(-0.05, 0.05)).clamp(0, 1)
    last = victim.model((point - 0.3) / 0.4).argmax(-1) != victim.y
    torch.testing.assert_close(ours[last], point[last].detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm", [2.0, float("inf")])
def test_pgd_stays_in_its_ball(norm: float, victim: Victim) -> None:
    attack = PGD(bounds=victim.bounds, norm=norm, epsilon=0.3, iterations=7, seed=4)
    delta = (attack(victim.model, victim.x) - victim.x) * 0.4
    assert torch.linalg.vector_norm(delta.flatten(1), norm, dim=1).max() <= 0.3 + 1e-5
    start = attack.offset(victim.x)
    assert 0 < torch.linalg.vector_norm(start.flatten(1), norm, dim=1) <= 0.3
    assert not torch.equal(start, PGD(norm=norm, epsilon=0.3, seed=5).offset(victim.x))


def test_frequency_fgsm_is_fgsm_in_its_band_only(victim: Victim) -> None:
    low, high = (FrequencyFGSM(bounds=victim.bounds, frequency=f, width=0.15, epsilon=0.01) for f in (0.1, 0.9))
    for attack, inside in ((low, lambda r: r <= 0.26), (high, lambda r: r >= 0.74)):
        # a small budget on inputs away from the bounds, so that clipping adds no frequencies
        x = victim.x * 0.2 + 0.5
        delta = (attack(victim.model, x) - x)[:, 0].double()
        power = torch.fft.fft2(delta).abs().square().mean(0)
        f = 2 * torch.fft.fftfreq(8, dtype=torch.float64).abs()
        ring = torch.maximum(f[:, None].expand(8, 8), f[None].expand(8, 8))
        assert power[~inside(ring)].sum() <= 1e-6 * power.sum() and power.sum() > 0
    level = FrequencyFGSM(bounds=victim.bounds, frequency=0.5, l2=0.2).run(victim.model, victim.x * 0.2 + 0.5)
    torch.testing.assert_close(level.distance[level.success], torch.full_like(level.distance[level.success], 0.2))
    with pytest.raises(InputError, match="images"):
        FrequencyFGSM().run(nn.Linear(4, 2), torch.rand(3, 4))


def test_the_cheap_ruler_ranks_as_cw_does(victim: Victim) -> None:
    from scipy.stats import spearmanr

    cw, ddn = (attack(bounds=victim.bounds).run(victim.model, victim.x[:24]) for attack in (CarliniWagner, DDN))
    assert spearmanr(cw.distance, ddn.distance).statistic >= 0.97
    assert bool(cw.success.all()) and bool(ddn.success.all())
    assert cw.calls.float().mean() >= 10 * ddn.calls.float().mean()
    assert float((cw.distance / ddn.distance).mean()) == pytest.approx(1, abs=0.03)


def pooled(predictor: object, x: Tensor) -> Tensor:
    """Return the log of the mean probability over members, differentiable, in plain code."""
    held = []
    for j in range(predictor.size):  # type: ignore[attr-defined]
        with predictor.member(j) as network:  # type: ignore[attr-defined]
            held.append(torch.softmax(network(x), -1))
    return torch.stack(held).mean(0).log()


@pytest.mark.parametrize("kind", ["deep", "dropout", "pep"])
def test_ensembles_are_attacked_through_their_pool(kind: str, victim: Victim) -> None:
    if kind == "deep":
        torch.manual_seed(0)
        other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        predictor: object = DeepEnsemble([victim.model, other])
    else:
        predictor = (
            MCDropout(victim.model, members=5, seed=1) if kind == "dropout" else PEP(victim.model, 0.05, members=3)
        )
    before = {k: v.clone() for k, v in victim.model.state_dict().items()}
    x = victim.x[:12].clone().requires_grad_()
    logits = pooled(predictor, x)
    nn.functional.cross_entropy(logits, logits.argmax(-1), reduction="sum").backward(inputs=[x])
    expected = (x.detach() * 0.4 + 0.3 + 0.05 * x.grad.sign()).clamp(0, 1)
    ours = FGSM(bounds=victim.bounds, epsilon=0.05).run(predictor, victim.x[:12]).adversarial * 0.4 + 0.3
    same = (ours - expected).abs().flatten(1).amax(1) < 1e-5
    assert same.float().mean() > 0.9  # signs may differ where the gradient is almost zero
    result = DDN(bounds=victim.bounds).run(predictor, victim.x[:12])
    assert bool(result.success.all())
    assert bool((predictor(result.adversarial).argmax(-1) != predictor(victim.x[:12]).argmax(-1)).all())  # type: ignore[operator]
    assert all(torch.equal(before[k], v) for k, v in victim.model.state_dict().items())


def test_the_success_rate_is_that_of_ss(victim: Victim) -> None:
    """SS Table E.2: 28.3 % under FGSM with 62.9 % ASR, and 7.5 % under PGD with 90.1 %, fit one clean accuracy."""
    clean = 0.283 / (1 - 0.629)
    assert attack_success_rate(clean, 0.283) == pytest.approx(0.629)
    assert attack_success_rate(clean, 0.075) == pytest.approx(0.901, abs=1e-3)
    assert median_distance(torch.tensor([3.0, 1.0, math.inf, 2.0])) == 2.5
    assert median_distance(torch.tensor([1.0, math.inf, math.inf])) == math.inf
    with pytest.raises(InputError, match="check the labels"):
        with torch.no_grad():
            wrong = (victim.model(victim.x).argmax(-1) + 1) % 10
        assess(victim.model, DDN(bounds=victim.bounds), victim.x, wrong)
