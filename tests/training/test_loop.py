"""The training loop against a plain PyTorch loop, and what it promises about members, records and bad losses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import calibrant
from calibrant import files
from calibrant.data import Batches, load
from calibrant.errors import DivergedError, FileError, InputError
from calibrant.nn.surgery import smoothed
from calibrant.training import How, Recipe, checkpoint, read, train
from calibrant.training import load as load_run
from calibrant.training.epochs import kept_top_logits
from calibrant.training.evaluate import summary
from calibrant.training.networks import networks
from calibrant.training.randomness import generator
from calibrant.types import Split

QUIET = How(device="cpu", quiet=True)


def small(*settings: str) -> Recipe:
    return read("digits/cross_entropy", ["epochs=2", "network.hidden=[32]", *settings])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return {f"{i}.{k}": v for i, m in enumerate(load_run(run).members) for k, v in m.state_dict().items()}


def test_the_loop_equals_a_plain_torch_loop(tmp_path: Path) -> None:
    """torch's own loss, optimiser and schedule over the same batches end in the same weights."""
    recipe = small(
        "optimiser={name='sgd', lr=0.05, momentum=0.9, nesterov=true, weight_decay=1e-3}",
        "schedule={name='multistep', milestones=[1], gamma=0.2}",
        "targets={name='smoothing', epsilon=0.1}",
    )
    train(recipe, tmp_path / "run", QUIET)
    data = load("digits")
    [net] = networks(recipe, data)
    optimiser = torch.optim.SGD(net.parameters(), 0.05, 0.9, weight_decay=1e-3, nesterov=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [1], 0.2)
    net.train()
    for epoch in range(2):
        rng = generator("cpu", 0, "order", 0, epoch)
        batches = Batches(data["train"], 64, generator=rng, shuffle=True, mean=data.mean, std=data.std)
        for x, y, _ in batches:
            optimiser.zero_grad()
            F.cross_entropy(net(x), y, label_smoothing=0.1).backward()
            optimiser.step()
        schedule.step()
    found = weights(tmp_path / "run")
    for name, value in net.state_dict().items():
        torch.testing.assert_close(found[f"0.{name}"], value, atol=1e-5, rtol=1e-5)


def test_the_folder_holds_predictions_and_records(tmp_path: Path) -> None:
    result = train(small(), tmp_path / "run", replace(QUIET, keep_epochs=True))
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {
        *("recipe.json", "environment.json", "data.json", "log.jsonl", "metrics.json", "checkpoint", "epochs"),
        *("validation.npz", "calibration.npz", "test.npz"),
    }
    for split in ("validation", "calibration", "test"):
        p = files.read(tmp_path / "run" / f"{split}.npz")
        assert p.split == split and p.classes is not None and p.ids is not None and p.raw
        assert calibrant.evaluate(p, intervals=False)["ece"].value == pytest.approx(result["metrics"][split]["ece"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in rows] == [1, 2]
    assert {"loss", "accuracy", "nll", "ece", "auroc", "lr", "images_per_second"} <= set(rows[0])
    last = files.read(tmp_path / "run" / "epochs" / "validation-00002.npz")
    assert summary(last)["ece"] == pytest.approx(rows[1]["ece"])
    assert "recipe.json" in names and json.loads((tmp_path / "run" / "metrics.json").read_text())["epochs"] == 2


def test_the_splits_are_disjoint_and_the_run_repeats_itself(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    first = train(small("network.dropout=0.2", "transforms=['mixup']", "ema=0.9"), tmp_path / "a", QUIET)
    assert torch.equal(state, torch.get_rng_state())  # the global generator is left as found
    second = train(small("network.dropout=0.2", "transforms=['mixup']", "ema=0.9"), tmp_path / "b", QUIET)
    assert first["metrics"] == second["metrics"]
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(a[k], b[k]) for k in a)
    other = train(small("network.dropout=0.2", "transforms=['mixup']", "ema=0.9", "seed=1"), tmp_path / "c", QUIET)
    assert other["metrics"] != first["metrics"]


def test_members_run_in_lock_step_each_on_its_own_stream(tmp_path: Path) -> None:
    """With fixed targets, each of two members is trained as it would be alone."""
    recipe = small("members=2")
    train(recipe, tmp_path / "both", QUIET)
    p = files.read(tmp_path / "both" / "test.npz")
    assert p.members == 2 and p.logits is not None and not torch.equal(p.logits[0], p.logits[1])
    alone = small()
    train(alone, tmp_path / "one", QUIET)
    q = files.read(tmp_path / "one" / "test.npz")
    assert q.logits is not None and torch.equal(q.logits, p.logits[0])


def test_epochs_keep_the_top_logits_of_the_training_part(tmp_path: Path) -> None:
    recipe = small("members=2", "augment={crop_padding=1, flip=false}")
    train(recipe, tmp_path / "run", replace(QUIET, keep_epochs=True))
    kept = kept_top_logits(tmp_path / "run")
    data, trained = load("digits"), load_run(tmp_path / "run")
    part = data["train"]
    assert sorted(kept) == [1, 2]
    batches = Batches(part, 500, mean=data.mean, std=data.std)
    with torch.no_grad():
        logits = torch.stack([torch.cat([net(x) for x, _, _ in batches]) for net in trained.members])
    assert torch.equal(kept[2].labels, part.y) and torch.equal(kept[2].index, part.index)
    torch.testing.assert_close(kept[2].largest_logit, logits.amax(-1), atol=1e-4, rtol=1e-4)
    assert (kept[2].predicted == logits.argmax(-1)).float().mean() > 0.999
    assert not torch.equal(kept[1].largest_logit, kept[2].largest_logit)


def test_ema_is_the_average_of_the_weights(tmp_path: Path) -> None:
    """The average after two full-batch steps, computed from the weights of runs without averaging."""
    base = ["batch=2000", "optimiser={name='sgd', lr=0.1, momentum=0}"]
    train(small(*base, "ema=0.75"), tmp_path / "ema", QUIET)
    data = load("digits")
    steps = []
    for n in (1, 2):
        train(small(*base, f"epochs={n}"), tmp_path / f"{n}", QUIET)
        steps.append(weights(tmp_path / f"{n}"))
    [start] = networks(small(*base), data)
    found = weights(tmp_path / "ema")
    for name, first in start.named_parameters():
        expected = 0.75 * (0.75 * first + 0.25 * steps[0][f"0.{name}"]) + 0.25 * steps[1][f"0.{name}"]
        torch.testing.assert_close(found[f"0.{name}"], expected.detach(), atol=1e-6, rtol=1e-5)


def test_a_bad_loss_stops_and_names_its_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, poison = small("epochs=3"), 500
    data = load("digits")
    x = data["train"].x.clone().float()
    culprit = int(data["train"].index[poison])
    healthy = replace(data, splits={**data.splits, Split.TRAIN: replace(data["train"], x=x.clone())})
    x[poison] = torch.finfo(torch.float32).max  # infinite as soon as it is divided by the deviation
    ill = replace(data, splits={**data.splits, Split.TRAIN: replace(data["train"], x=x)})
    run = tmp_path / "run"
    monkeypatch.setattr(checkpoint, "save_training", _stop_after(checkpoint.save_training, 1))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, run, QUIET, data=healthy)
    monkeypatch.undo()
    before = {p.name: p.read_bytes() for p in (run / "checkpoint").iterdir()}
    with pytest.raises(
        DivergedError, match=rf"the loss is nan in epoch 2.*\b{culprit}\b.*last good checkpoint"
    ) as caught:
        train(recipe, run, QUIET, data=ill)
    assert caught.value.exit_code == 1
    assert {p.name: p.read_bytes() for p in (run / "checkpoint").iterdir()} == before


def _stop_after(save: Any, epoch: int) -> Any:
    def stopping(folder: Path, at: int, *rest: Any) -> None:
        save(folder, at, *rest)
        if at == epoch:
            raise KeyboardInterrupt

    return stopping


def test_invalid_requests_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown device 'tpu'"):
        train(small(), tmp_path / "deep" / "b", replace(QUIET, device="tpu"))
    with pytest.raises(InputError, match="at least one process"):
        train(small(), tmp_path / "d", replace(QUIET, devices=0))
    assert list(tmp_path.iterdir()) == []
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no CUDA device"):
            train(small(), tmp_path / "c", replace(QUIET, device="cuda"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(FileError, match="and is not a training run"):
        train(small(), tmp_path / "full", QUIET)
    train(small("epochs=1"), tmp_path / "e", QUIET)
    with pytest.raises(InputError, match=r"other settings \(epochs, seed\)"):
        train(small("seed=3"), tmp_path / "e", QUIET)


def test_bfloat16_on_the_cpu_trains(tmp_path: Path) -> None:
    train(small("precision=bfloat16"), tmp_path / "run", QUIET)
    train(small(), tmp_path / "float32", QUIET)
    rounded, whole = (files.read(tmp_path / name / "test.npz").logits for name in ("run", "float32"))
    assert rounded is not None and whole is not None and rounded.dtype == torch.float32
    assert 0 < (rounded - whole).abs().mean() < 0.2 * whole.std()


def test_every_family_composes(tmp_path: Path) -> None:
    settings = ["loss={name='focal', gamma=1}", "penalties=['mmce', 'entropy', 'ranking']", "targets=adals"]
    result = train(small(*settings, "members=2", "ema=0.5", "epochs=3"), tmp_path / "run", QUIET)
    assert result["metrics"]["test"]["accuracy"] > 0.6


def test_a_smoothed_network_trains_and_comes_back_smoothed(tmp_path: Path) -> None:
    options = "network={name='resnet20', dropout=0.1, smooth={kernel=[1, 1], tau=10.0}}"
    train(read("digits/cross_entropy", [options, "epochs=1", "batch=512"]), tmp_path / "run", QUIET)
    run = load_run(tmp_path / "run")
    assert len(smoothed(run.members[0])) == 3
    data = load("digits")
    batches = Batches(data["test"], 100, mean=data.mean, std=data.std)
    again = calibrant.predict(run.members[0], batches)
    there = files.read(tmp_path / "run" / "test.npz").logits
    assert again.logits is not None and there is not None
    torch.testing.assert_close(again.logits.float(), there.float(), rtol=1e-4, atol=1e-5)
