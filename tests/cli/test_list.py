"""`calibrant list`: every family has entries, and an unknown name gets the nearest one as an answer."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

from calibrant.cli import run
from calibrant.cli.list_ import FAMILIES, summary
from calibrant.metrics import METRICS


def test_families_with_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "--json"]) == 0
    families = {f["name"]: f["count"] for f in json.loads(capsys.readouterr().out)["families"]}
    assert list(families) == list(FAMILIES)
    assert families["metrics"] == len(METRICS)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_entries(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", family, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert run(["list", family]) == 0
    printed = capsys.readouterr().out
    assert entries and all(entry["name"] in printed and entry["summary"] in printed for entry in entries)
    for entry in entries:  # a sentence that ends at an abbreviation's full stop leaves a bracket open
        assert entry["summary"].count("(") == entry["summary"].count(")"), entry


@pytest.mark.parametrize("words", [["--version"], ["--help"], []])
def test_the_overview_needs_no_torch(words: list[str]) -> None:
    code = f"import sys; from calibrant.cli import run; run({words!r}); print('torch' in sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "False" and "calibrant" in ran.stdout


def test_unknown_family_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "metric"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == "calibrant: unknown family 'metric'; did you mean 'metrics'?\n"


class Documented:
    """One sentence over
    two lines. Another one.

    More."""


def test_summary_reads_classes_instances_partials_and_lazy_entries() -> None:
    for entry in (Documented, Documented(), functools.partial(Documented), f"{__name__}:Documented"):
        assert summary(entry) == "One sentence over two lines"
