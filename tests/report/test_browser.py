"""The page in a real browser (Debian's chromium): numbers against Python, sorting, escaping, no network, no errors.

Without chromium these are skipped, except under CI=true, where a missing browser is a failure.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from calibrant import predictions
from calibrant.cli import run
from calibrant.metrics.evaluate import evaluate
from calibrant.report.html import Audit, write
from calibrant.report.operating import OperatingPoints, operating_points

EVIL = "<script>alert(1)</script>"
EVIL_FILE = "<img src=x onerror=alert(1)>.npz"
CLASSES = (EVIL, "</script>", "class 10", "class 9", "a & b")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)


@pytest.fixture(scope="module")
def found() -> Audit:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.6, (3000, 5))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((3000, 1))).sum(1).clip(0, 4)
    ids = [f"{EVIL}{i}" for i in range(3000)]
    made = predictions(2.5 * logits, labels, classes=CLASSES, ids=ids, source=f"data/{EVIL_FILE}")
    return Audit.of(made, evaluate(made, intervals=False))


@pytest.fixture(scope="module")
def points(found: Audit) -> OperatingPoints:
    assert found.scores is not None
    return operating_points(found.scores)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI=true, but chromium or chromedriver is missing: apt-get install chromium chromium-driver")
        pytest.skip("no chromium and chromedriver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield session
    session.quit()


@pytest.fixture(scope="module")
def address(found: Audit, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    return write(path, [found], command=f"calibrant audit {EVIL_FILE}").as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Any:
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(address)
    return browser


def find(page: Any, selector: str) -> Any:
    return page.find_element("css selector", selector)


def shown(page: Any, name: str) -> str:
    return str(page.execute_script(f"return document.querySelector('[data-out={name}]').textContent"))


def numbers_in(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"[+-]?\d+(?:\.\d+)?", text.replace(",", "").replace("−", "-"))]


def compare(page: Any, points: OperatingPoints, i: int) -> None:
    """Everything shown for point i, against Python, to half a unit of the last digit shown."""
    accuracy, confidence = float(points.accuracy[i]), float(points.confidence[i])
    assert numbers_in(shown(page, "coverage")) == pytest.approx([100 * points.coverage[i]], abs=0.051)
    assert numbers_in(shown(page, "coverageWords")) == [points.accepted[i], points.n, points.n - points.accepted[i]]
    assert numbers_in(shown(page, "accuracy")) == pytest.approx([100 * accuracy], abs=0.0051)
    span = [95, 100 * points.accuracy_low[i], 100 * points.accuracy_high[i]]
    assert numbers_in(shown(page, "accuracyInterval")) == pytest.approx(span, abs=0.0051)
    assert numbers_in(shown(page, "accuracyWords")) == [points.accepted[i] - points.correct[i]]
    assert numbers_in(shown(page, "gap")) == pytest.approx([100 * (confidence - accuracy)], abs=0.0052)
    gap = [95, 100 * (confidence - points.accuracy_high[i]), 100 * (confidence - points.accuracy_low[i])]
    assert numbers_in(shown(page, "gapInterval")) == pytest.approx(gap, abs=0.0052)
    assert numbers_in(shown(page, "ece")) == pytest.approx([100 * points.ece[i]], abs=0.0051)
    assert numbers_in(shown(page, "chance")) == pytest.approx([100 * points.ece_chance[i]], abs=0.0051)
    assert float(page.execute_script("return document.querySelector('.threshold').value")) == points.threshold[i]


def test_the_slider_shows_what_python_computed(page: Any, points: OperatingPoints) -> None:
    slider = find(page, ".slider")
    slider.send_keys(Keys.HOME)
    compare(page, points, 0)
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    compare(page, points, 3)
    dot = page.execute_script("return document.querySelector('circle.mark').getAttribute('cx')")
    slider.send_keys(Keys.END)
    compare(page, points, len(points.threshold) - 1)
    assert float(page.execute_script("return document.querySelector('circle.mark').getAttribute('cx')")) < float(dot)
    assert "threshold" in slider.get_attribute("aria-valuetext")


def test_the_command_has_the_threshold_of_the_slider(page: Any, points: OperatingPoints) -> None:
    slider, command, copy = (find(page, name) for name in (".slider", ".command", ".copy"))
    for key, i in ((Keys.HOME, 0), (Keys.ARROW_RIGHT, 1), (Keys.END, len(points.threshold) - 1)):
        slider.send_keys(key)
        words = command.text.split()
        assert words[:4] == ["calibrant", "decide", "CALIBRATION", "--threshold"] and words[5:] == ["-o", "rule"]
        assert float(words[4]) == points.threshold[i]
    copy.click()
    assert find(page, ".copied").text == "copied"
    box = find(page, ".filter")
    box.send_keys(Keys.CONTROL, "v")
    assert box.get_attribute("value") == command.text


def test_a_typed_threshold_is_looked_up(page: Any, points: OperatingPoints) -> None:
    box = find(page, ".threshold")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("0.9", Keys.TAB)
    compare(page, points, int(np.flatnonzero(points.threshold == 0.9)[0]))
    assert find(page, ".answer").text == ""
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("0.90000001", Keys.TAB)
    assert "nearest stored" in find(page, ".answer").text


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("goal", [0.75, 0.95, 1.0])
def test_ask_for_an_accuracy(page: Any, points: OperatingPoints, goal: float, sure: bool) -> None:
    box = find(page, ".goal")
    box.clear()
    box.send_keys(f"{100 * goal:g}")
    if sure:
        find(page, ".sure").click()
    find(page, ".find").click()
    answer = find(page, ".answer").text
    expected = points.at_accuracy(goal, sure=sure)
    if expected is None:
        assert answer.startswith("No threshold")
        return
    compare(page, points, expected)
    assert numbers_in(answer)[0] == points.threshold[expected]
    held = goal if sure else points.accuracy[expected]
    assert numbers_in(answer)[2] == pytest.approx(100 * held, abs=0.0052)
    assert points.accuracy[expected] >= goal


def column(page: Any, i: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll('.sortable tbody tr')].map(r => r.cells[arguments[0]].textContent.trim())"
    )
    return [str(text) for text in page.execute_script(script, i)]


def test_the_table_sorts_by_any_column(page: Any, found: Audit) -> None:
    assert column(page, 0) == list(CLASSES)
    heads = page.find_elements("css selector", ".sortable th")
    for i in range(1, len(heads)):
        button = heads[i].find_element("tag name", "button")
        for direction, sign in (("descending", -1), ("ascending", 1)):
            button.click()
            assert heads[i].get_attribute("aria-sort") == direction
            values = [numbers_in(text)[0] for text in column(page, i)]
            assert values == sorted(values, key=lambda v: sign * v)
    heads[0].find_element("tag name", "button").click()
    names = column(page, 0)
    assert set(names) == set(CLASSES)
    assert names.index("class 9") < names.index("class 10")  # as people count
    assert heads[0].get_attribute("aria-sort") == "ascending"
    assert found.scores is not None
    row = column(page, 1)[names.index("class 9")]
    assert int(row) == int((found.scores.labels == 3).sum())


def test_the_table_filters(page: Any) -> None:
    find(page, ".filter").send_keys("CLASS 1")
    seen = page.execute_script(
        "return [...document.querySelectorAll('.sortable tbody tr')].filter(r => r.offsetHeight > 0)"
        ".map(r => r.cells[0].textContent)"
    )
    assert [text.strip() for text in seen] == ["class 10"]


def test_the_policy_blocks_what_escaping_would_let_through(page: Any) -> None:
    """Even a script put into the page by force does not run."""
    page.execute_script(
        "window.ran = false; const s = document.createElement('script'); s.textContent = 'window.ran = true';"
        "document.body.append(s)"
    )
    assert page.execute_script("return window.ran") is False
    assert any("Content Security Policy" in entry["message"] for entry in page.get_log("browser"))


def test_dark_and_light(page: Any) -> None:
    def paper() -> str:
        return str(page.execute_script("return getComputedStyle(document.body).backgroundColor"))

    def curve() -> str:
        return str(page.execute_script("return getComputedStyle(document.querySelector('figure svg text')).fill"))

    button = find(page, "#theme")
    first = (paper(), curve())
    button.click()
    second = (paper(), curve())
    assert first[0] != second[0] and first[1] != second[1]  # figures follow the page
    button.click()
    assert (paper(), curve()) == first


def test_two_files_have_two_sliders(browser: Any, found: Audit, tmp_path: Path) -> None:
    browser.get(write(tmp_path / "two.html", [found, replace(found, name="again")], command="x").as_uri())
    sliders = browser.find_elements("css selector", ".slider")
    before = [slider.get_attribute("value") for slider in sliders]
    sliders[1].send_keys(Keys.HOME)
    assert [slider.get_attribute("value") for slider in sliders] == [before[0], "0"]
    shares = browser.execute_script(
        "return [...document.querySelectorAll('[data-out=coverage]')].map(e => e.textContent)"
    )
    assert numbers_in(shares[1]) == [100]
    assert numbers_in(shares[0]) != [100]
    assert browser.get_log("browser") == []


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of an audit with advice and groups: every table that the report can have."""
    where = tmp_path_factory.mktemp("advised")
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1.6, (600, 5))
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    site = rng.choice(["north", "east", "south", "a west with a long name"], 600)
    np.savez(where / "x.npz", logits=np.where(site == "north", 5, 1)[:, None] * z, labels=y, site=site)
    assert run(["audit", str(where / "x.npz"), "--by", "site", "--html", str(where / "r.html")]) == 0
    return (where / "r.html").as_uri()


@pytest.mark.parametrize("width", [360, 420, 1280])
def test_the_page_fits_every_width(browser: Any, advised: str, width: int) -> None:
    """A phone scrolls wide tables inside their frame; a laptop shows them whole."""
    browser.get(advised)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        clipped = (
            "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        )
        assert width < 600 or browser.execute_script(clipped) == 0
        assert browser.execute_script("return document.querySelectorAll('.panel tr.worst').length") == 1
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_number_has_a_tooltip_and_its_percent_sign(browser: Any, advised: str) -> None:
    """A number's own title, or what the script sets when the pointer comes over a cell."""
    browser.get(advised)
    bare = browser.execute_script(
        "const bare = [];"
        "for (const e of document.querySelectorAll('.card .big span, .bars b, tbody td.num, .sortable td + td')) {"
        "  e.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));"
        "  const some = e.title || e.querySelector('[title]') || e.cellIndex === 0;"
        "  if (/\\d/.test(e.textContent) && !some) bare.push(e.outerHTML);"
        "} return bare"
    )
    assert bare == []
    ece = browser.execute_script(
        "return [...document.querySelectorAll('.panel th')].find(e => e.textContent === 'ece').title"
    )
    assert "how far confidence is from accuracy" in ece.lower() and "Lower is better" in ece
    text = browser.execute_script("return document.body.innerText")
    assert not re.search(r"[\d>< ] %", text)
    goal = browser.execute_script("return getComputedStyle(document.querySelector('.goal').parentNode).whiteSpace")
    assert goal == "nowrap"


def test_printing_gives_one_page(browser: Any, advised: str, found: Audit, tmp_path: Path) -> None:
    several = write(tmp_path / "two.html", [found, replace(found, name="again")], command="x").as_uri()
    for address in (advised, several):
        browser.get(address)
        printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True})
        assert len(re.findall(rb"/Type\s*/Page[^s]", base64.b64decode(printed["data"]))) == 1


def test_the_markdown_button_copies_the_verdict_and_six_numbers(page: Any, found: Audit) -> None:
    page.execute_script(
        "window.copied = ''; document.addEventListener('copy', () => {"
        " const e = document.activeElement; window.copied = e.value; })"
    )
    find(page, "#copy").click()
    text = page.execute_script("return window.copied")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert find(page, "h1").text == f"Can you trust {EVIL_FILE}?" and EVIL in find(page, ".mistakes").text
    assert len(rows) == 1 + 1 + 6 and all(row.count(" | ") == 1 for row in rows)
    assert f"{100 * found.report['accuracy'].value:.2f}%" in text  # type: ignore[operator]
    assert "\\<img src=x onerror=alert(1)\\>" in text and find(page, "#copy").text == "Copied"


def test_no_error_and_no_request(page: Any, address: str) -> None:
    page.execute_script(
        "document.querySelector('.find').click(); document.querySelector('.sortable th button').click()"
    )
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked, "the log of requests is empty, so that it proves nothing"
    assert {url for url in asked if not url.startswith("data:")} == {address}
    assert Path(address.removeprefix("file://")).exists()


def test_the_page_of_claims_opens_without_errors_and_switches_colours(browser: Any, tmp_path: Path) -> None:
    assert run(["bench", "report", "-o", str(tmp_path / "claims.html")]) == 0
    browser.get_log("browser")
    browser.get((tmp_path / "claims.html").as_uri())
    find(browser, "#theme").click()
    assert browser.execute_script("return document.documentElement.dataset.theme") in ("light", "dark")
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
