"""A folder that was truncated, edited or made by a newer version is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import calibrant
from calibrant.errors import CalibrantError, FileError, MapError
from calibrant.posthoc.calibrator import Composition
from calibrant.posthoc.histogram import HistogramMass
from calibrant.posthoc.map import Chain, Pool
from calibrant.posthoc.storage import HEADER, TENSORS
from calibrant.posthoc.temperature import Temperature


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(300, 3, generator=g)
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    return calibrant.fit("vector", z, y, split="calibration").save(tmp_path / "map")


def edit(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    header = json.loads((folder / HEADER).read_text())
    change(header)
    (folder / HEADER).write_text(json.dumps(header))


def test_header_says_what_was_fitted_on_what(folder: Path) -> None:
    header = json.loads((folder / HEADER).read_text())
    record = header["map"]["record"]
    assert header["method"] == "vector" and header["version"] == 1
    assert record["split"] == "calibration" and len(record["data"]) == 64 and record["settings"] == {"ridge": 1e-4}
    assert record["certificate"]["decrement"] < 1e-8 and record["guard"]["ok"] is True
    assert sorted(p.name for p in folder.iterdir()) == [HEADER, TENSORS]


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / TENSORS).write_bytes((f / TENSORS).read_bytes()[:-3]), "truncated or edited"),
        (lambda f: (f / TENSORS).write_bytes((f / TENSORS).read_bytes()[:-1] + b"\x01"), "truncated or edited"),
        (lambda f: (f / TENSORS).unlink(), "missing"),
        (lambda f: (f / HEADER).unlink(), "missing"),
        (lambda f: (f / HEADER).write_text((f / HEADER).read_text()[:100]), "not JSON"),
        (lambda f: (f / HEADER).write_bytes(b"\xff\xfe\x00"), "not JSON"),
        (lambda f: (f / HEADER).write_text("[]"), "not the header"),
        (lambda f: edit(f, lambda h: h.update(version=2)), "newer than 1"),
        (lambda f: edit(f, lambda h: h.update(method="temperature")), "was edited"),
        (lambda f: edit(f, lambda h: h["map"]["record"].update(nll_after=0.0)), "was edited"),  # type: ignore[attr-defined,index]
    ],
)
def test_broken_folders(folder: Path, break_it: Callable[[Path], object], message: str) -> None:
    break_it(folder)
    with pytest.raises(MapError, match=message) as caught:
        calibrant.load(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", [HEADER, TENSORS])
def test_a_link_that_leads_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    outside = (folder / name).rename(folder.parent / name)
    (folder / name).symlink_to(outside)
    with pytest.raises(FileError, match=f"{name} is a link that leads out of"):
        calibrant.load(folder)


def test_folders_without_a_map_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not a folder"):
        calibrant.load(tmp_path / "nothing")
    with pytest.raises(CalibrantError, match="missing"):
        calibrant.load(tmp_path)


def test_chains_nest_and_keep_their_bits(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(1)
    zs = 3 * torch.randn(3, 400, 4, generator=g)
    y = torch.multinomial(torch.softmax(zs.mean(0), 1), 1, generator=g)[:, 0]
    p = calibrant.predictions(zs, y)
    inner = Composition(Temperature(), HistogramMass(bins=5)).fit(p)
    m = Chain((Pool(), Chain((Temperature(T=1.5).fit(p), inner)), HistogramMass(bins=4).fit(p)), record=inner.record)
    again = calibrant.load(m.save(tmp_path / "chain"))
    assert isinstance(again, Chain) and isinstance(again.maps[1], Chain) and len(again.maps) == 3
    assert torch.equal(m(zs), again(zs)) and again.record == m.record
    a, b = m.predictions(p), again.predictions(p)
    assert a.confidence is not None and b.confidence is not None and torch.equal(a.confidence, b.confidence)


def test_saving_over_an_old_map_replaces_it(folder: Path) -> None:
    z = torch.randn(50, 3, generator=torch.Generator().manual_seed(2))
    m = calibrant.fit("temperature", z, torch.arange(50) % 3, T=2.0)
    m.save(folder)
    assert calibrant.load(folder).summary() == {"temperature": 2.0}


def test_class_count(folder: Path) -> None:
    with pytest.raises(MapError, match="fitted for 3 classes, the predictions have 4"):
        calibrant.load(folder)(torch.zeros(2, 4))
    z = torch.randn(60, 3, generator=torch.Generator().manual_seed(2))
    for name in ("temperature", "temperature+histogram_mass"):
        m = calibrant.fit(name, z, torch.arange(60) % 3)
        with pytest.raises(MapError, match="fitted for 3 classes"):
            m.predictions(calibrant.predictions(torch.zeros(2, 5), [0, 1]))
