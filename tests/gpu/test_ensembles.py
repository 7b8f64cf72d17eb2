"""Ensembles and predictions on a CUDA device, from data on the CPU, agree with those on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import calibrant
from calibrant.ensembles import PEP
from calibrant.nn import build
from calibrant.nn.training_ensemble import TrainingEnsemble
from tests.test_laws_ensembles import MAKE, network, x

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DRAWN_THERE = ("pep", "dropout")  # a GPU draws other numbers


@pytest.mark.parametrize("name", MAKE)
def test_members_and_predictions_are_the_cpus(name: str) -> None:
    """An ensemble that was made on the CPU, and whose networks were moved afterwards."""
    loader = [(x(), torch.arange(12) % 4)]
    ensemble = MAKE[name](network().eval(), 3)
    here = ensemble.members(x())
    for each in ensemble.networks:
        each.cuda()
    rng = torch.cuda.get_rng_state()
    there = ensemble.members(x().cuda())
    assert there.is_cuda and torch.equal(there, ensemble.members(x().cuda()))
    if name in DRAWN_THERE:
        assert not torch.equal(there[0], there[1])
    else:
        torch.testing.assert_close(there.cpu(), here, atol=1e-4, rtol=1e-4)
    pooled, kept = ensemble.predict(loader), ensemble.predict(loader, keep_members=True)
    assert pooled.logits is not None and kept.logits is not None and not pooled.logits.is_cuda
    torch.testing.assert_close(kept.logits, there.cpu().to(kept.logits), atol=1e-4, rtol=1e-4)
    mean = kept.logits.double().softmax(-1).mean(0)
    torch.testing.assert_close(pooled.logits.double().softmax(-1), mean, atol=1e-5, rtol=0)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        half = ensemble.members(x().cuda())
    if name != "dropout":  # a mask of other numbers may be another one
        torch.testing.assert_close(half.float(), there.float(), atol=0.1, rtol=0.1)
    assert torch.equal(rng, torch.cuda.get_rng_state())


@pytest.mark.parametrize("autocast", [None, torch.float16])
def test_sigma_is_found_from_batches_on_the_cpu(autocast: torch.dtype | None) -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)).cuda()
    images, labels = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    before = [p.clone() for p in model.parameters()]
    pep = PEP.fit(model.eval(), [(images[:25], labels[:25]), (images[25:], labels[25:])], autocast=autocast)
    assert pep.certificate is not None and pep.certificate.nll <= pep.certificate.nll_at_zero
    assert pep.certificate.rejected == 0 and pep.certificate.curve[-1].gain_error is not None
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_predictions_of_a_network_that_is_moved_for_them() -> None:
    model = build("resnet20", classes=4).eval()
    images, labels = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4
    loader = [(images[:4], labels[:4], torch.arange(4)), (images[4:], labels[4:], torch.arange(4, 6))]
    here = calibrant.predict(model, loader, features=True)
    there = calibrant.predict(model, loader, features=True, device="cuda")
    assert next(model.parameters()).device.type == "cpu" and there.ids == here.ids
    for a, b in ((there.logits, here.logits), (there.features, here.features)):
        assert a is not None and not a.is_cuda
        torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)  # convolutions in TF32
    halved = calibrant.predict(model.cuda(), loader, autocast=torch.bfloat16)
    assert halved.logits is not None and halved.logits.dtype == torch.float32
    torch.testing.assert_close(halved.logits, here.logits, atol=0.1, rtol=0.1)


def test_passes_are_averaged_while_training() -> None:
    inner = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 3)).cuda()
    images = torch.randn(5, 3, 2, 2, device="cuda")
    model = TrainingEnsemble(inner, 4).train()
    model(images).sum().backward()
    assert model(images).shape == (5, 3) and all(p.grad is not None for p in inner.parameters())
    torch.testing.assert_close(model.eval()(images), inner(images))


def test_a_stream_is_smoothed_where_its_frames_are() -> None:
    frames = torch.rand(7, 3, 4, 4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).eval()
    here, there = (calibrant.TemporalSmoothing(m, scene_cut=0.9) for m in (model, copy.deepcopy(model).cuda()))
    cut: Tensor = torch.arange(7) == 4
    said = there(frames.cuda(), stream=torch.zeros(7).long().cuda(), cut=cut.cuda())
    assert said.is_cuda
    torch.testing.assert_close(said.cpu(), here(frames, stream=0, cut=cut), atol=1e-5, rtol=1e-5)
