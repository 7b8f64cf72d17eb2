"""What every test may rely on: no display, no time limit on slow machines, one place for large data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.hurried import few_replicates

os.environ.setdefault("MPLBACKEND", "Agg")

# a busy machine is no bug, and a failure must come back when the test is run again
settings.register_profile("calibrant", deadline=None, derandomize=True)
settings.load_profile("calibrant")


SHOWN = ("cli", "report", "training")
"""Folders whose tests look at what is shown, written and refused: rough intervals will do there."""


@pytest.fixture(autouse=True, scope="module")
def quick(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.path.parent.name in SHOWN:
            few_replicates(monkeypatch)
        yield


@pytest.fixture(autouse=True)
def stays_in_its_folder() -> Iterator[None]:
    """A test that changes the working directory for good breaks others, far from itself."""
    before = Path.cwd()
    yield
    after = Path.cwd()
    os.chdir(before)
    assert after == before, "change the folder with monkeypatch.chdir"


@pytest.fixture(scope="session")
def big_data() -> Path:
    """The folder of data sets that are not bundled; tests that need it skip without it."""
    folder = os.environ.get("CALIBRANT_DATA")
    if not folder:
        pytest.skip("set CALIBRANT_DATA to the folder with the data sets to run this")
    return Path(folder)
