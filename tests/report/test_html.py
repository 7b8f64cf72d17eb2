"""The page: self-contained, small, escaped, and honest about what it cannot show."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from calibrant import predictions
from calibrant.errors import FileError, InputError
from calibrant.functional import reduce
from calibrant.functional.decomposition import event_bins
from calibrant.functional.scores import positive_class
from calibrant.metrics.compare import Comparison, Difference, compare
from calibrant.metrics.evaluate import evaluate
from calibrant.posthoc.advise import Advice, Tried
from calibrant.report import numbers
from calibrant.report.html import Audit, render, write
from calibrant.report.page import json_for_html
from calibrant.types import Predictions

EVIL = "<script>alert(1)</script>"
P = predictions([[2.0, 0.0, 1.0], [0.0, 1.0, 3.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], [0, 2, 1, 1])


class Page(HTMLParser):
    """All start tags with attributes, all text outside scripts and styles, all scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are computed but not written as SVG, which takes most of the time of a page."""
    monkeypatch.setattr("calibrant.report.sections.to_svg", lambda *_: "")


def test_the_page_loads_nothing_and_its_ids_are_unique(audit: Callable[..., Audit]) -> None:
    text = render([audit(classes=list("abcdef")), audit(seed=2)], command="calibrant audit toy.npz")
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base", "form"), tag
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith("#") or value == "data:,", (tag, value)
    assert "url(" not in text.replace("url(#", "")  # clip paths of the figures alone
    assert "http" not in re.sub(r"http-equiv|http://www\.w3\.org/2000/svg", "", text)
    (policy,) = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy and "script-src 'sha256-" in policy
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    clips = [i for i in ids if i is not None and re.fullmatch(r"[pmC].*", i)]
    own = [i for i in ids if i not in clips]
    assert len(own) == len(set(own))


@pytest.mark.usefixtures("words_only")
def test_the_page_has_every_part_and_every_metric(make: Callable[..., Predictions]) -> None:
    p = make(classes=["ant", "bee", "cat", "dog", "elk", "fox"], ids=range(2000))
    found = Audit.of(p, evaluate(p, replicates=20), "mine.npz")
    page = Page(render([found], command="calibrant audit mine.npz --html r.html"))
    for part in (
        "Can you trust mine.npz?",
        "calibrant audit mine.npz --html r.html",
        "2,000 items, 6 classes",
        "elk",
        "right-closed",
        "The worst confident mistakes",
        "What to do next",
        "sum over classes",
        "Choose the accuracy before you look at this table",
        "Brier score, decomposed",
        "ECE from confidence and AUROC",
        "bins underconfident",
        "Test of calibration",
    ):
        assert part in page.text, part
    for name in found.report:
        assert f"{name}" in page.text


def test_text_of_users_stays_text(audit: Callable[..., Audit]) -> None:
    names = [EVIL, "</script><b>", '"onload="x', "a&b", "\u2028", "{{ 7 * 7 }}"]
    found = audit(name=EVIL, n=300, classes=names, ids=[f"{EVIL}{i}" for i in range(300)])
    found = replace(found, report=replace(found.report, file=EVIL))
    advice = Advice(EVIL, EVIL, EVIL, (Tried(EVIL, evaluate(P, intervals=False), None, (EVIL,)),), command=EVIL)
    difference = Difference("ece", 0.1, 0.2, 0.1, 0.0, 1.0, 0.5, 0.5, verdict=EVIL)
    compared = Comparison(EVIL, EVIL, 300, (difference,))
    text = render([found, found], command=EVIL, title=EVIL, comparisons=[compared], advice=advice)
    page = Page(text)
    assert "<script>alert" not in text
    assert len([t for t, _ in page.tags if t == "script"]) == 2
    assert not any("alert" in s for s in page.scripts)
    assert EVIL in page.text and "</script><b>" in page.text and "{{ 7 * 7 }}" in page.text
    assert not any(name.startswith("on") for _, a in page.tags for name in a)


def test_json_cannot_leave_its_element() -> None:
    value = {"x": "</script><!--&\u2028\u2029", "y": [1.5, None, True]}
    text = json_for_html(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_a_thousand_classes_and_many_items_stay_bounded() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 1000, 60_000)
    predicted = np.where(rng.random(60_000) < 0.7, labels, rng.integers(0, 1000, 60_000))
    p = predictions(predicted=predicted, confidence=rng.beta(8, 2, 60_000), labels=labels)
    text = render([Audit.of(p, evaluate(p, intervals=False))], command="x")
    assert len(text.encode()) < 500_000
    assert text.count("<tr><td>") >= 1000
    assert "no probabilities of the other classes" in text


@pytest.mark.parametrize(
    ("p", "bins"),
    [
        (predictions([[2.0, 0.0, 1.0]], [1]), 1),
        (predictions([[2.0, 0.0]] * 5, [0] * 5), 15),
        (predictions([[2.0, 0.0]] * 5, [1] * 5), 1),
        (predictions(predicted=[1, 0], confidence=[1.0, 0.0], labels=[1, 1]), 15),
        (predictions([[1e4, -1e4], [float("-inf"), 0.0]], [0, 1]), 15),
    ],
    ids=["N=1", "all right", "all wrong", "confidence 0 and 1", "saturated"],
)
def test_extremes(p: Predictions, bins: int) -> None:
    text = render([Audit.of(p, evaluate(p, bins=bins))], command="x")
    assert "nan" not in Page(text).text.lower().replace("finance", "")
    if bool((p.labels == reduce(p).predicted).all()):
        assert "every answer is right" in text


def test_a_stream_says_what_is_missing(audit: Callable[..., Audit]) -> None:
    whole = audit()
    assert whole.scores is not None
    text = render([Audit("stream", whole.report, sums=event_bins(whole.scores))], command="x")
    assert "only sums were kept" in text
    assert "reliability diagram" in text
    assert "class-table" not in text and "Where do I set the threshold" not in text
    bare = render([Audit("stream", whole.report)], command="x")
    assert "reliability diagram" not in bare
    bounds = {"stream": {"bounds": {"auroc": 2e-7, "ece": 0.0}, "exact": False}}
    streamed = Audit("stream", replace(whole.report, extras=bounds))
    assert "exact but for auroc ± 2.0e-07 at most" in Page(render([streamed], command="x")).text


@pytest.mark.usefixtures("words_only")
def test_notes_about_a_file_come_before_its_verdict(audit: Callable[..., Audit]) -> None:
    doubted = replace(audit(), notes=("every row of <b>these</b> logits sums to 1",))
    text = render([audit(), doubted], command="x")
    assert text.count("Every row of &lt;b&gt;these&lt;/b&gt; logits sums to 1.") == 1
    before, after = text.split("sums to 1.")
    assert before.count('<p class="verdict">') == after.count('<p class="verdict">') == 1, "it stands before its own"


@pytest.mark.usefixtures("words_only")
def test_the_page_says_that_it_is_about_the_positive_class() -> None:
    rng = np.random.default_rng(0)
    p = predictions(rng.normal(size=200), rng.integers(0, 2, 200))
    report = evaluate(p, about="positive", intervals=False)
    found = Audit.of(p, report)
    assert found.scores is not None
    np.testing.assert_array_equal(found.scores.confidence, positive_class(reduce(p)).confidence)
    assert "about the probability of the positive class" in render([found], command="x")


@pytest.mark.usefixtures("words_only")
def test_side_by_side_with_the_paired_comparison(audit: Callable[..., Audit]) -> None:
    better = Difference("ece", 0.03, 0.018, -0.012, -0.02, -0.004, 0.0003, 0.0003, verdict="better")
    compared = Comparison("a.npz", "b.npz", 2000, (better,))
    a, b = audit(name="a.npz"), audit(name="b.npz", sharpness=1.0)
    change = compare(P, P, metrics=("nll", "ece", "auroc"), replicates=20)
    tried = (Tried("none", a.report, None), Tried("temperature", b.report, change))
    advice = Advice("Temperature it is.", "temperature", "judged on half", tried)
    page = Page(text := render([a, b], command="x", comparisons=[compared], advice=advice, after=b))
    nll = numbers.value("nll", b.report["nll"].value)
    for part in ("Side by side", "−1.20 pp", "Temperature it is.", f"{nll} within noise", "before and after"):
        assert part in page.text, part
    assert text.count('<tr class="chosen">') == 1


@pytest.mark.usefixtures("words_only")
def test_written_whole_or_not_at_all(audit: Callable[..., Audit], tmp_path: Path) -> None:
    path = write(tmp_path / "r.html", [audit(n=50)], command="x")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(FileError):
        write(tmp_path / "none" / "r.html", [audit(n=50)], command="x")
    with pytest.raises(InputError):
        render([], command="x")


def test_the_same_input_gives_the_same_page(audit: Callable[..., Audit], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    first, again = (render([audit(n=200)], command="x") for _ in range(2))
    assert first == again
    assert "1970-01-01" in first


@pytest.mark.usefixtures("words_only")
def test_one_file_before_and_after_starts_with_its_verdict(audit: Callable[..., Audit]) -> None:
    better = Difference("ece", 0.2, 0.1, -0.1, -0.2, -0.05, 0.3, 0.6, verdict="better")
    before, after = audit(), audit(sharpness=1.0)
    compared = Comparison("raw", "calm", 2000, (better,))
    text = Page(render([before], command="x", after=after, comparisons=[compared])).text
    assert text.index("says") < text.index("What to do next") < text.index("Is the difference real?")
    assert "Is calm better than" in text
    assert "0.60" in text  # Holm's p is what the verdict was made with
