"""robustness and levels: order, bounds, store and errors. (tests/test_killed.py resumes after kill -9.)"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from rich.progress import Progress
from torch import nn

import calibrant
from calibrant.attacks import DDN, FGSM, Bounds, levels, robustness
from calibrant.attacks.loop import batch_size
from calibrant.attacks.store import EDITION
from calibrant.data import load
from calibrant.data.batches import Augment, Batches
from calibrant.errors import CalibrantError, InputError
from calibrant.types import Split
from tests.attacks.conftest import Victim


def test_tensor_and_batches_agree(victim: Victim) -> None:
    part = load("digits")["test"].take(torch.arange(40), "test")  # type: ignore[arg-type]
    batches = Batches(part, 16, mean=victim.bounds.mean, std=victim.bounds.std)
    x = torch.cat([x for x, _, _ in batches])
    from_batches = calibrant.robustness(victim.model, batches, "ddn", chunk=17)
    from_tensor = calibrant.robustness(victim.model, x, "ddn", bounds=victim.bounds)
    assert from_batches.shape == (40,) and from_batches.dtype == torch.float32
    # some processors round a convolution of 17 rows differently from one of 40
    torch.testing.assert_close(from_batches, from_tensor, rtol=1e-3, atol=1e-6)
    turned = robustness(victim.model, x.flip(0), DDN(), bounds=victim.bounds)
    torch.testing.assert_close(turned.flip(0), from_tensor, rtol=1e-3, atol=1e-6)


def test_large_items_are_attacked_and_stored_in_smaller_batches(
    victim: Victim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {batch_size(DDN(), torch.empty(1000, *shape, device="meta")) for shape in ((3, 32, 32), (3, 224, 224))}
    assert sizes == {125} and batch_size(DDN(), torch.empty(1000, 3, 1024, 1024, device="meta")) == 42
    monkeypatch.setattr("calibrant.attacks.loop.MOST_NUMBERS", 25 * 64)
    part = load("digits")["test"].take(torch.arange(60), "test")  # type: ignore[arg-type]
    for name, x in (("tensor", part.x / 255), ("batches", Batches(part, 60))):
        robustness(victim.model, x, "ddn", iterations=1, store=tmp_path / name)
        assert len(list((tmp_path / name).glob("*.safetensors"))) == 3


def test_the_progress_bar_names_the_split(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transient bar prints nothing without a terminal, so the arguments of `add_task` are checked."""
    said: list[str] = []
    honest = Progress.add_task
    monkeypatch.setattr(Progress, "add_task", lambda bar, title, **k: said.append(title) or honest(bar, title, **k))
    part = load("digits")["validation"].take(torch.arange(8), Split.VALIDATION)
    batches = Batches(part, 8, mean=victim.bounds.mean, std=victim.bounds.std)
    robustness(victim.model, batches, "ddn", progress=True)
    assert said == ["robustness, validation items"]


def test_store_resumes_and_refuses_other_measurements(victim: Victim, tmp_path: Path) -> None:
    settings = {"bounds": victim.bounds, "store": tmp_path / "store"}
    first = robustness(victim.model, victim.x, "ddn", chunk=20, **settings)
    kept = sorted(p.name for p in (tmp_path / "store").iterdir())
    assert kept == ["00000.safetensors", "00001.safetensors", "00002.safetensors", "robustness.json"]
    (tmp_path / "store" / "00001.safetensors").unlink()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += torch.is_grad_enabled()

    hook = victim.model.register_forward_hook(count)
    again = robustness(victim.model, victim.x, "ddn", **settings)  # keeps its chunk size
    resumed, calls = calls, 0
    robustness(victim.model, victim.x[20:40], "ddn", bounds=victim.bounds)
    hook.remove()
    assert torch.equal(first, again) and resumed == calls  # only one chunk of three was measured again

    with pytest.raises(InputError, match="other data"):
        robustness(victim.model, victim.x.flip(0), "ddn", **settings)
    with pytest.raises(InputError, match="distances of n 60, not 30; choose another store or remove"):
        robustness(victim.model, victim.x[:30], "ddn", **settings)
    with pytest.raises(InputError, match="distances of iterations 20, not 9"):
        robustness(victim.model, victim.x, "ddn", iterations=9, **settings)
    with pytest.raises(InputError, match="distances of ruler ddn, not cw"):
        robustness(victim.model, victim.x, "cw", **settings)
    with pytest.raises(InputError, match="chunks of 20"):
        robustness(victim.model, victim.x, "ddn", chunk=10, **settings)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(InputError, match="distances of model .*…, not .*…; choose"):
        robustness(other, victim.x, "ddn", **settings)
    header = tmp_path / "store" / "robustness.json"
    begun = {**json.loads(header.read_text()), "edition": 1}  # before the rulers changed
    header.write_text(json.dumps(begun))
    with pytest.raises(InputError, match=f"distances of edition 1, not {EDITION}; choose another store"):
        robustness(victim.model, victim.x, "ddn", **settings)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(InputError, match="something other"):
        robustness(victim.model, victim.x, "ddn", bounds=victim.bounds, store=tmp_path / "notes")


def test_bounds_may_be_a_pair(victim: Victim) -> None:
    x, model = victim.x[:12], victim.model
    wide = robustness(model, x, "ddn", bounds=Bounds(-3, 3))
    assert torch.equal(robustness(model, x, "ddn", bounds=(torch.tensor(-3.0), 3)), wide)


def test_refused_input_is_named_and_leaves_no_store(victim: Victim, tmp_path: Path) -> None:
    store = tmp_path / "store"
    constant = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False)
    constant[1].weight.zero_()
    part = load("digits")["test"]
    shuffled = Batches(part, 16, shuffle=True, generator=torch.Generator())
    augmented = Batches(part, 16, augment=Augment(), generator=torch.Generator())
    none = Batches(part.take(torch.arange(0), Split.TEST), 16)
    for model, x, settings, says in (
        (constant, victim.x, {}, "constant logits"),
        (victim.model, victim.x[0, 0, 0, 0], {}, r"must be a batch \[N, …\], got the shape \(\)"),
        (victim.model, victim.x[:, 0, 0, 0], {}, r"got the shape \(60,\)"),
        (victim.model, victim.x[:0], {}, "no item to attack"),
        (victim.model, victim.x, {"ruler": DDN}, r"ruler must be a name or an attack.*use DDN\(\)"),
        (victim.model, victim.x, {"ruler": 3}, "use 'cw' or 'ddn'"),
        (victim.model, victim.x, {"bounds": 1.0}, r"a pair \(low, high\), got 1.0"),
        (victim.model, victim.x, {"bounds": ("a", "b")}, "bounds: low='a' must be a number"),
        (victim.model, victim.x, {"bounds": None}, "outside the bounds"),
        (victim.model, victim.x.tolist(), {}, "must be a tensor of inputs or Batches"),
        (victim.model, none, {"bounds": None}, "no item"),
        (victim.model, shuffled, {"bounds": None}, "order of the data"),
        (victim.model, augmented, {"bounds": None}, "order of the data"),
        (victim.model, victim.x, {"ruler": "dnn"}, "did you mean 'ddn'"),
        (victim.model, victim.x, {"iteration": 3}, "did you mean 'iterations'"),
        (victim.model, victim.x, {"ruler": FGSM()}, "measures no distance"),
        *((victim.model, victim.x, {"chunk": chunk}, "chunk") for chunk in ("a", 1.5, True, 0)),
        *((victim.model, victim.x, {"store": folder}, "store") for folder in (5, ["a"])),
        (victim.model, victim.x, {"device": "gpu"}, "not on gpu"),
    ):
        with pytest.raises(CalibrantError, match=says):
            robustness(model, x, **{"ruler": "ddn", "bounds": victim.bounds, "store": store, **settings})
    assert not list(tmp_path.iterdir())


@limits(max_examples=50)
@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, float("inf")]), min_size=1, max_size=40), st.integers(1, 12))
def test_levels_are_equal_sized_ordered_and_break_ties_by_index(values: list[float], count: int) -> None:
    if count > len(values):
        with pytest.raises(InputError, match=f"R={count}"):
            levels(torch.tensor(values), count)
        return
    level = levels(torch.tensor(values), count)
    sizes = level.bincount(minlength=count)
    assert int(sizes.max()) - int(sizes.min()) <= 1 and len(sizes) == count
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    assert level[order].tolist() == sorted(level.tolist())


def test_levels_take_arrays_and_lists_of_distances() -> None:
    values = [0.3, 0.1, 0.2, 0.1]
    for distance in (values, np.array(values), torch.tensor(values)):
        assert levels(distance, 2).tolist() == [1, 0, 1, 0]
    with pytest.raises(InputError, match="item 1 is not a number"):
        levels(torch.tensor([1.0, float("nan")]), 2)
    with pytest.raises(InputError, match="shape"):
        levels(torch.ones(2, 2))
    with pytest.raises(InputError, match="distance holds"):
        levels(["near", "far"])
    for count in (2.5, "a", None, True, float("nan")):
        with pytest.raises(InputError, match=rf"R={count} levels of 5 items.*from 1 to 5"):
            levels(torch.ones(5), count)  # type: ignore[arg-type]


class Dark(nn.Module):
    """A network without a gradient where all pixels are above a half."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(0.5 - x)) + torch.tensor([0.0, 0.01, 0.02])


@pytest.mark.parametrize("chunk", [8, 3])  # alone, among others
def test_one_item_without_a_gradient_does_not_refuse_the_model(chunk: int, tmp_path: Path) -> None:
    """An item without a gradient is infinitely far away, however the items are cut into chunks."""
    x = torch.cat([torch.rand(8, 4, generator=torch.Generator().manual_seed(0)) * 0.4, torch.full((1, 4), 0.9)])
    for order in (x, x.flip(0)):
        found = robustness(Dark(), order, "ddn", chunk=chunk, store=tmp_path / f"{chunk}-{order[0, 0]:.2f}")
        assert torch.isinf(found).tolist() == (order[:, 0] > 0.5).tolist()
    with pytest.raises(InputError, match="constant logits"):
        robustness(Dark(), x[-1:].expand(5, 4), "ddn", chunk=2, store=tmp_path / "flat")
    assert not (tmp_path / "flat").exists()
