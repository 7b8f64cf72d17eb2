"""What objects show of themselves, in a shell and in a notebook."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch

import calibrant
from calibrant.display import Rows, Shown
from calibrant.errors import InputError
from calibrant.types import Estimate

Z = 3 * torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
Y = Z.argmax(1)
Y[:80] = (Y[:80] + 1) % 3


@dataclass(frozen=True)
class Named(Shown):
    name: str

    def _shown(self) -> tuple[str, Rows]:
        return self.name, [("longer", "a"), ("b", self.name)]


@dataclass(frozen=True)
class Heir(Named):
    more: int = 0


def test_both_forms_come_from_one_description_in_subclasses_too() -> None:
    assert repr(Heir("x")) == "x\n  longer  a\n  b       x"
    assert Heir("x")._repr_html_().count("<tr>") == 2


def test_other_peoples_text_neither_steers_the_terminal_nor_becomes_html() -> None:
    shown = Named("\x1b[31m<script>")
    assert "\x1b" not in repr(shown) and "\\x1b" in repr(shown)
    assert "<script>" not in shown._repr_html_() and "&lt;script&gt;" in shown._repr_html_()


def test_a_report_is_a_mapping_with_attributes() -> None:
    report = calibrant.evaluate(Z, Y, intervals=False)
    assert report.nll is report["nll"] and "nll" in dir(report) and "nll" in report and "NLL" not in report
    assert report.get("nope") is None and not hasattr(report, "nope")
    for again in (copy.copy(report), copy.deepcopy(report), pickle.loads(pickle.dumps(report))):
        assert again.nll.value == report.nll.value
    with pytest.raises(AttributeError, match="did you mean 'to_html'?"):
        report.to_htm  # noqa: B018


def test_short_views_without_the_six() -> None:
    report = calibrant.evaluate(Z, Y, metrics=["ks", "aurc"], intervals=False)
    assert repr(report).splitlines()[1].split()[0] == "ks"
    comparison = calibrant.compare(Z, Z / 2, Y, metrics=["ks"])
    assert "ks" in repr(comparison) and repr(comparison["ks"]).startswith("ks: ")


def test_a_report_of_a_stream_has_nothing_to_draw(tmp_path: object) -> None:
    from dataclasses import replace

    streamed = replace(calibrant.evaluate(Z, Y, intervals=False), predictions=None)
    with pytest.raises(InputError, match="streamed"):
        streamed.to_html("report.html")


def test_every_map_shows_what_it_is() -> None:
    for name in ("temperature", "vector", "histogram", "isotonic", "temperature+histogram"):
        shown = repr(calibrant.fit(name, Z, Y))
        assert shown.startswith(f"{name} map") and "fitted on" in shown and "tensor(" not in shown


def test_an_estimate_is_used_like_its_number() -> None:
    e = Estimate(0.0312, 0.02, 0.04)
    assert float(e) == 0.0312 and round(e, 3) == 0.031 and f"{e:.2%}" == "3.12%" and f"{e}" == str(e)
    assert e < 0.05 and e >= 0.0312 and e <= Estimate(0.0312) and not e > Estimate(1.0)
    assert min(Estimate(0.2), e) is e and e != 0.0312  # equal is the whole estimate
    with pytest.raises(InputError, match="no value: one class only"):
        float(Estimate(None, reason="one class only"))
    with pytest.raises(TypeError):
        e < "0.05"  # noqa: B015
