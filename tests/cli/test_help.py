"""`--help` shows every option, cuts nothing off, and fits 80 columns."""

from __future__ import annotations

import re

import pytest

from calibrant.cli import VERBS, command, run


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
