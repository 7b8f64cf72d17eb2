"""Wrong numbers on the command line: one line and exit code 2, in memory and streamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import calibrant
from calibrant import files
from calibrant.cli import run

HUGE = str(2**70)


@pytest.fixture
def preds(tmp_path: Path) -> Path:
    z = np.random.default_rng(0).standard_normal((60, 3))
    return files.write(tmp_path / "p.parquet", calibrant.predictions(z, z.argmax(1)))


@pytest.mark.parametrize("bins", ["0", "-3", HUGE])
@pytest.mark.parametrize("how", [[], ["--stream"]], ids=["in memory", "streamed"])
def test_bins(bins: str, how: list[str], preds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", str(preds), "--no-intervals", "--bins", bins, *how]) == 2
    assert capsys.readouterr().err.startswith(f"calibrant: bins={bins}; it must be a whole number")


@pytest.mark.parametrize("verb", ["audit", "compare", "fit"])
def test_seeds(verb: str, preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"audit": [], "compare": [str(preds)], "fit": ["--method", "temperature", "-o", str(tmp_path / "map")]}[verb]
    assert run([verb, str(preds), "--seed", HUGE, *more]) == 2
    assert capsys.readouterr().err == f"calibrant: seed={HUGE}; it must be a whole number of at most 64 bits\n"


@pytest.mark.parametrize(
    ("method", "setting", "said"),
    [
        ("temperature", "T=nan", "must be a number"),
        ("structured_vector", "penalty=abc", "must be a number"),
        ("histogram", "bins=1e400", "must be a whole number"),
    ],
)
def test_settings(
    method: str, setting: str, said: str, preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", str(preds), "--method", method, "--set", setting, "-o", str(tmp_path / "map")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "map").exists()
