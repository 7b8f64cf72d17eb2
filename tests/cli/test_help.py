"""`--help` and `calibrant list`: every option and every entry is explained, and nothing is cut off."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys

import pytest

from calibrant.cli import VERBS, command, run
from calibrant.cli.list_ import FAMILIES, summary
from calibrant.metrics import METRICS


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_is_explained_within_80_columns(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for p in command(verb).commands[verb].params:
        if p.param_type_name == "option":
            assert any(word in out.split() for word in (*p.opts, *p.secondary_opts)), p.name
            assert p.help, f"--{p.name} has no help"
            assert " ".join(p.help.split()) in " ".join(out.split())


def test_the_overview_cuts_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(f"{verb} {about}." in out for verb, about in VERBS.items())
    assert run(["bench", "--help"]) == 0
    assert "..." not in capsys.readouterr().out.replace("[ARGS]...", "")


def test_options_are_grouped_and_a_switch_shows_the_word_that_changes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--help"]) == 0
    options, files, streams = re.split(r"How files are read:|Streams:", capsys.readouterr().out)
    assert "--no-intervals " in options and "--no-stream" not in streams and "--stream " in streams
    assert "--labels-key TEXT" in files and "--bins N" in options and "default: 15" in options


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


class Documented:
    """One sentence over
    two lines. Another one.

    More."""


def test_summary_reads_classes_instances_partials_and_lazy_entries() -> None:
    for entry in (Documented, Documented(), functools.partial(Documented), f"{__name__}:Documented"):
        assert summary(entry) == "One sentence over two lines"
