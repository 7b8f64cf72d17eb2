"""The Python of docs/ensembles.md runs as it stands, and the σ curve is drawn from what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from calibrant.ensembles.pep import PEP
from calibrant.ensembles.sigma import sigma_curve
from calibrant.report.plots import sigma_errors, sigma_likelihood

PAGE = Path(__file__).parents[2] / "docs" / "ensembles.md"


def test_every_python_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)), {})
    assert (tmp_path / "sigma.png").stat().st_size > 1000


def test_the_curve_shows_the_measured_points(overfitted) -> None:
    curve = sigma_curve(PEP(overfitted.model, 0.0, 4, antithetic=True), overfitted.calibration)
    points = curve.points([0.0, 0.05, 0.1])
    drawn = next(line for line in sigma_likelihood(points).lines if str(line.get_label()).startswith("ensemble"))
    assert list(drawn.get_xdata()) == [0.0, 0.05, 0.1]
    assert list(drawn.get_ydata()) == [p.log_likelihood for p in points]
    ece, brier = sigma_errors(points).lines
    assert list(ece.get_ydata()) == [p.ece for p in points] and list(brier.get_ydata()) == [p.brier for p in points]
