"""The σ curve in the report: what was measured stands in the table, the figure keeps its digits, bad σ are shown."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from calibrant.ensembles.pep import PEP
from calibrant.ensembles.sigma import SigmaPoint, sigma_curve
from calibrant.ensembles.sigma_search import Certificate
from calibrant.errors import InputError
from calibrant.report.panels import drawn
from calibrant.report.sigma_panel import sigma_panel

X = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def test_a_fitted_ensemble_is_enough(model: nn.Module) -> None:
    pep = PEP.fit(model, (X, Y), range=(1e-3, 0.5), members=4)
    panel = sigma_panel(pep)
    assert pep.certificate is not None
    assert [row[1] for row in panel.tables[0].rows] == [f"{-p.log_likelihood:.4f}" for p in pep.certificate.curve]
    assert panel.tables[0].chosen == [p.sigma for p in pep.certificate.curve].index(pep.sigma)
    assert f"{pep.certificate.nll:.4f}" in panel.lead and len(panel.figures) == 2


def test_the_band_is_the_error_of_the_gain(model: nn.Module) -> None:
    curve = sigma_curve(PEP(model, 0.0, 4), (X, Y))
    point = curve.at(0.2)
    with torch.no_grad():
        pooled = torch.stack([torch.softmax(z.double(), -1) for z in PEP(model, 0.2, 4).members(X)]).mean(0).log()
        alone = torch.log_softmax(model(X).double(), -1)
    gain = (pooled - alone).gather(1, Y[:, None])[:, 0]
    assert point.gain_error == pytest.approx(float(gain.std()) / math.sqrt(300), rel=1e-6)
    assert curve.at(0.0).gain_error == 0


def test_small_sigmas_keep_their_digits_in_the_figure(model: nn.Module) -> None:
    points = sigma_curve(PEP(model, 0.0, 2), (X, Y)).points([0.0, 0.001, 0.002])
    svg = str(drawn([sigma_panel(PEP(model, 0.002, 2), points)])[0]["figures"][0]["svg"])
    ticks = [float(text) for text in re.findall(r">(0\.\d+)<", svg)]
    assert 0.001 in ticks and 0.002 in ticks


def test_a_rejected_probe_is_shown_as_such(model: nn.Module) -> None:
    seen = Certificate("bracket", 5, 1.0, 0.9, (0.1, 0.2), True, (), 1, 5, ("1 probe(s) rejected",))
    points = (*sigma_curve(PEP(model, 0.0, 2), (X, Y)).points([0.0, 0.1]), SigmaPoint(9.0, -math.inf, math.nan, ()))
    panel = sigma_panel(PEP(model, 0.1, 2, certificate=seen), points)
    assert panel.tables[0].rows[-1][1] == "not finite" and "1 probe(s) rejected" in panel.notes


def test_without_a_curve_it_says_how_to_get_one(model: nn.Module) -> None:
    with pytest.raises(InputError, match=r"PEP\.fit"):
        sigma_panel(PEP(model, 0.1))
