"""A map recognises the items it was fitted on in another order or precision, and takes no other items for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant
from calibrant import files
from calibrant.cli import run
from calibrant.errors import SplitError
from calibrant.functional.inputs import predictions
from calibrant.posthoc import overlap
from calibrant.types import Predictions, Split


def drawn(n: int, k: int, seed: int, scale: float = 3.0) -> Predictions:
    rng = np.random.default_rng(seed)
    z = (scale * rng.normal(size=(n, k))).astype(np.float32)
    return predictions(z, rng.integers(k, size=n), split=Split.CALIBRATION)


def judged(p: Predictions) -> Predictions:
    return replace(p, split=Split.TEST)


def again(p: Predictions, how: str) -> Predictions:
    assert p.logits is not None
    if how == "shuffled":
        return p.take(torch.randperm(p.n, generator=torch.Generator().manual_seed(1)))
    if how == "float64":
        return replace(p, logits=p.logits.double() + 1e-9)
    return replace(p, logits=torch.log_softmax(p.logits, -1), raw=False)


@pytest.mark.parametrize("how", ["shuffled", "float64", "log-probabilities"])
@pytest.mark.parametrize(("n", "k"), [(40, 2), (500, 10), (2000, 100)])
def test_the_same_items_in_another_shape_are_refused(n: int, k: int, how: str) -> None:
    p = drawn(n, k, 0)
    fitted = calibrant.fit("temperature", p)
    with pytest.raises(SplitError, match="same items"):
        calibrant.evaluate(fitted.predictions(judged(again(p, how))), metrics=["nll"])
    calibrant.evaluate(fitted.predictions(judged(again(p, how))), metrics=["nll"], allow_reuse=True)


def test_the_same_items_of_an_ensemble_are_refused() -> None:
    p = drawn(300, 5, 0)
    members = replace(p, logits=torch.stack([drawn(300, 5, seed).logits for seed in (0, 1)]))  # type: ignore[misc]
    fitted = calibrant.fit("vector", members)
    with pytest.raises(SplitError, match="same items"):
        calibrant.evaluate(fitted.predictions(judged(again(members, "shuffled"))), metrics=["nll"])


@settings(max_examples=25, deadline=None)
@given(kept=st.integers(0, 1000), k=st.sampled_from([2, 3, 10]), seed=st.integers(0, 10**6))
def test_overlap_is_the_share_of_calibration_items(kept: int, k: int, seed: int) -> None:
    p, other = drawn(1000, k, seed), drawn(1000, k, seed + 1)
    mixed = predictions(
        torch.cat([p.take(torch.arange(kept)).logits, other.logits]),  # type: ignore[list-item]
        torch.cat([p.labels[:kept], other.labels]),
    )
    found = overlap.share(overlap.sketch(p), mixed)
    assert abs(found - kept / 1000) < 5 * (0.25 / overlap.SIZE) ** 0.5  # a sample of SIZE, and few chance hits


def test_equal_scores_are_not_equal_items() -> None:
    rng = np.random.default_rng(0)

    def votes(seed: int) -> Predictions:  # of a forest of ten trees
        share = np.random.default_rng(seed).integers(0, 11, 400) / 10
        return predictions(None, rng.integers(2, size=400), probs=np.stack([share, 1 - share], 1))

    assert overlap.sketch(votes(0)) == ()
    copied = drawn(1000, 3, 0).take(torch.cat([torch.arange(920), torch.arange(80)]))
    assert overlap.sketch(copied) == (), "160 items of 1,000 equal another one"
    fitted = calibrant.fit("temperature", replace(votes(0), split=Split.CALIBRATION))
    assert fitted.overlap(votes(1)) == 0


def test_the_sketch_is_saved_and_apply_reports_the_overlap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p = drawn(600, 4, 0)
    calibrant.fit("temperature", p).save(tmp_path / "map")
    held = calibrant.load(tmp_path / "map")
    assert held.record.items == overlap.sketch(p) and held.overlap(p) == 1
    files.write(tmp_path / "half.npz", judged(p.take(torch.arange(300))))
    command = ["apply", str(tmp_path / "map"), str(tmp_path / "half.npz"), "-o", str(tmp_path / "out.npz")]
    assert run(command) == 0
    assert "items that the map was fitted on" in " ".join(capsys.readouterr().err.split())
    assert run([*command, "--json"]) == 0
    assert 0.3 < json.loads(capsys.readouterr().out)["overlap"] < 0.7


@pytest.mark.parametrize("k", [2, 40, 300])
def test_the_sketch_does_not_depend_on_blocks(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    p = drawn(700, k, 0)
    found = overlap.sketch(p)
    monkeypatch.setattr(overlap, "BLOCK", 64 * k + 1)
    assert overlap.sketch(p) == found
