"""A wrong name says what was probably meant: in every family, for files and for columns."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import calibrant
from calibrant.cli import run

FAMILIES = sorted(name for name in calibrant._PACKAGES if hasattr(import_module(f"calibrant.{name}"), "__all__"))


def test_the_families_are_there() -> None:
    assert {"losses", "targets", "transforms", "ensembles", "posthoc", "decisions", "training"} <= {*FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_suggests_its_names(family: str) -> None:
    module = import_module(f"calibrant.{family}")
    longest = max(module.__all__, key=len)
    with pytest.raises(AttributeError, match=f"(?i)did you mean calibrant.{family}.{longest}\\?"):
        getattr(module, f"{longest}x")
    assert not hasattr(module, "__no_such_thing__")


def test_a_guessed_loss() -> None:
    with pytest.raises(AttributeError, match=r"did you mean calibrant\.losses\.Focal\?"):
        calibrant.losses.FocalLoss  # noqa: B018
    from calibrant.losses import focal  # a module of the family, not a name of it

    assert focal.Focal is calibrant.losses.Focal


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    g = np.random.default_rng(0)
    kept = {"logits": g.normal(size=(60, 3)), "species": g.integers(0, 3, 60), "hospital": g.integers(0, 2, 60)}
    np.savez("demo/calibration.npz", **kept)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["audit", "demo/calibraton.npz"], "did you mean demo/calibration.npz?"),
        (["audit", "dmo/calibration.npz"], "did you mean demo/calibration.npz?"),
        (["fit", "demo/calibration.nzp"], "did you mean demo/calibration.npz?"),
        (["apply", "demos", "demo/calibration.npz", "-o", "o.npz"], "did you mean demo?"),
        (["predict", "demos", "-o", "o.npz"], "did you mean demo?"),
        (["audit", "demo/calibration.npz", "--labels-key", "specie"], "did you mean 'species'?"),
        (["audit", "demo/calibration.npz", "--labels-key", "species", "--by", "hopsital"], "did you mean 'hospital'?"),
        (["fit", "demo/calibration.npz", "--labels-key", "species", "--logits-key", "logit"], "did you mean 'logits'?"),
        (["audit", "somewhere/quite/else.npz"], "somewhere/quite/else.npz: no such file\n"),
    ],
)
def test_files_and_columns(argv: list[str], meant: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert meant in capsys.readouterr().err


def test_columns_of_a_data_frame() -> None:
    import pyarrow as pa

    table = pa.table({"prob_0": [0.2, 0.7], "prob_1": [0.8, 0.3], "species": [0, 1]})
    with pytest.raises(calibrant.errors.FileError, match="did you mean 'species'"):
        calibrant.evaluate(table, labels_key="specie")
