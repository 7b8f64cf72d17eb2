"""Fixtures for the tests of all verbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrant.cli import run
from tests.cli.commands import Refused, call


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the advice of an audit try only a few calibrators: few tests are about it."""
    monkeypatch.setattr("calibrant.cli.audit.BUDGET", 0.2)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the bundled digits with dropout and the weights of three epochs. Tests only read it."""
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = ["--set", "epochs=4", "--set", "network.dropout=0.2", "--keep-weights", "3", "--json"]
    assert run(["train", "digits/cross_entropy", "-o", str(out), *settings]) == 0
    return out


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Assert that a command ends with exit code 2 and one line with these words on stderr, and prints nothing else."""

    def check(argv: list[object], *words: str) -> None:
        capsys.readouterr()
        code, out, err = call(capsys, *argv)
        assert code == 2, err
        assert out == "" and err.count("\n") == 1 and err.startswith("calibrant: "), err
        for word in words:
            assert word in err

    return check
