"""Panels, on the page and of PEP's σ curve: text stays text, and figures keep their digits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from calibrant.ensembles.pep import PEP
from calibrant.ensembles.sigma import SigmaPoint, sigma_curve
from calibrant.ensembles.sigma_search import Certificate
from calibrant.errors import InputError
from calibrant.report.html import Audit, render
from calibrant.report.panels import Figure, Panel, Table, drawn
from calibrant.report.plots.style import new_axes
from calibrant.report.sigma_panel import sigma_panel

EVIL = "<script>alert(1)</script>"
X = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def test_a_panel_stands_below_the_verdict_with_figure_table_and_note(audit: Callable[..., Audit]) -> None:
    """Text stays text, ids are not shared, an interval stays whole, and a wide table is set small."""
    table = Table("by level", ["level", "ECE"], [["1", "4.7% [3.7, 6.7]"], ["2", "1.0%"]], chosen=1)
    wide = Table("wide", list("abcdefg"), [["0"] * 7])
    panels = [
        Panel("Which inputs?", "The fragile ones.", [figure("ECE by level")], [table], ["measured on test"]),
        Panel(EVIL, EVIL, [figure(EVIL)], [Table(EVIL, [EVIL], [[EVIL]])], [EVIL]),
        Panel("Wide?", "x", tables=[wide]),
    ]
    text = render([audit()], command="calibrant", panels=panels)
    assert text.index("Which inputs?") < text.index("The main numbers")
    assert 'aria-label="ECE by level"' in text and "measured on test" in text and EVIL not in text
    assert text.count('<tr class="chosen">') == 1
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    first, second = text.partition("Which inputs?")[2], text.partition("Wide?")[2]
    assert '4.7% <span class="nw">[3.7, 6.7]</span>' in first
    dense = ['<table class="plain dense">' in part.partition("</section>")[0] for part in (first, second)]
    assert dense == [False, True]
    several = render([audit("a.npz"), audit("b.npz")], command="calibrant", panels=panels[2:])
    assert several.index("Side by side") < several.index("Wide?") < several.index('<div class="file')


def figure(title: str) -> Figure:
    ax = new_axes()
    ax.fill_between([0, 1], [0, 1], [1, 2])
    ax.plot([0, 1], [1, 2], marker="o")
    ax.set_title(title)
    return Figure(ax, title)


def test_a_ragged_table_is_refused() -> None:
    with pytest.raises(InputError, match="row 0 has 1 cells for 2 columns"):
        Table("t", ["a", "b"], [["1"]])


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def test_the_sigma_panel_of_a_fitted_ensemble(model: nn.Module) -> None:
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
