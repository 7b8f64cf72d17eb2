"""Judging the papers' claims: the verdict, the count behind it, and the page of all claims."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from calibrant.bench import Store
from calibrant.bench.claims import Summary, rows
from calibrant.bench.reproduction import judged
from calibrant.cli import run
from calibrant.papers.reported import CLAIMS, Claim, Pair, Source
from tests.bench.test_reproduction import three

RESULTS = Path(__file__).resolve().parents[2] / "results"


def pair(label: str, method: str, base: str, **options: str) -> Pair:
    return Pair(label, Source(f"t/table1/{method}"), Source(f"t/table1/{base}"), "ece", -1, -0.04, **options)


def summary(*pairs: Pair) -> Summary:
    cells = [
        *three("base", 0.06),
        *three("better", 0.03),
        *three("worse", 0.09),
        *three("few", 0.02, scale="20 epochs"),
    ]
    cells += [*three("base", 0.06, scale="20 epochs"), three("once", 0.05)[0]]
    claim = Claim("t/claim", "§1", "It is so.", "so it is", pairs)
    return Summary(claim, tuple(judged(claim, cells)))


def test_a_claim_has_the_word_of_its_judged_comparisons() -> None:
    good, bad = pair("a", "better", "base"), pair("b", "worse", "base")
    assert summary(good).word == "reproduced" and summary(bad).word == "not reproduced"
    mixed = summary(good, bad, pair("c", "few", "base"), pair("d", "once", "base"), pair("e", "none", "base"))
    assert mixed.word == "mixed"
    assert mixed.count == (
        "1 reproduced, 1 not reproduced, 1 at another scale (1 as in the paper), "
        "1 with a single run (1 as in the paper by one seed), 1 not run"
    )
    assert summary(pair("c", "few", "base"), pair("d", "once", "base")).word == "other scale"
    assert (
        summary(pair("d", "once", "base")).word == "single run" and summary(pair("e", "none", "base")).word == "not run"
    )
    assert mixed.number == "ece −4.00 to +3.00 pp (paper −4.00 pp)"
    assert [r[5] for r in rows(mixed)][:3] == ["reproduced", "not reproduced", "other scale, as in the paper"]


def test_the_page_has_a_card_for_every_claim_and_loads_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, store = tmp_path / "claims.html", Store(tmp_path / "results")
    for cell in Store(RESULTS).cells("rc/table1"):
        store.write(cell)
    assert run(["bench", "report", "-o", str(out), "--results", str(store.root), "--json"]) == 0
    found = {c["claim"]: c for c in json.loads(capsys.readouterr().out)["claims"]}
    assert list(found) == list(CLAIMS)
    text = out.read_text("utf-8")
    assert all(f'id="{name}"' in text for name in CLAIMS) and text.count("<blockquote>") == len(CLAIMS)
    assert not re.search(r'(src|href)="(?!#|data:)', text) and "default-src 'none'" in text
    assert 0 < text.count("<svg") == sum(any(c["measured"] != "–" for c in s["comparisons"]) for s in found.values())
    other = tmp_path / "mine.txt"
    other.write_text("mine")
    assert run(["bench", "report", "-o", str(other), "--results", str(store.root)]) == 2 and other.read_text() == "mine"
    assert run(["bench", "report", "-o", str(out), "--results", str(tmp_path / "none")]) == 2


def test_the_pages_of_claims_are_the_cells() -> None:
    from docs.make_claims import ANCHOR, DOCS, pages

    remedy = "cells, claims or the rule have changed: run `python -m docs.make_claims` and commit what it wrote"
    found = pages()
    assert {name: (DOCS / name).read_text("utf-8") for name in found} == found, remedy
    assert ANCHOR == "the-rule" and "## The rule" in found["claims.md"]
