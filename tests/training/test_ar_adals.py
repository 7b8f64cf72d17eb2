"""AR-AdaLS: the vanilla twin, its distances, the levels and the training; wrong levels are refused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from calibrant.cli import run as cli
from calibrant.data import load as load_data
from calibrant.errors import FileError, InputError
from calibrant.functional.pooling import pool
from calibrant.targets import Levels
from calibrant.training import How, Recipe, distances, load, read, train
from calibrant.training.checkpoint import latest
from calibrant.training.levels import levels_of, vanilla
from calibrant.types import Split

QUIET = How(device="cpu", quiet=True)
SMALL = (
    "epochs=3",
    "network={name='mlp', hidden=[16], batch_norm=false}",
    "data.sizes={train=60, validation=40, calibration=20, test=40}",
    "targets={name='ar_adals', alpha=0.5, levels=4, ruler='ddn'}",
)


def small(*more: str) -> Recipe:
    return read("ar-adals/digits", [*SMALL, *more])


def policy_of(run: Path) -> dict[str, Tensor]:
    found = latest(run / "checkpoint", pytest.fail)
    assert found is not None
    return {k.removeprefix("policy."): v for k, v in found.tensors.items() if k.startswith("policy.")}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ar") / "run"
    train(small(), out, QUIET)
    return out


def test_the_run_stores_twin_robustness_and_epsilon(run: Path) -> None:
    twin = read(run / "vanilla")
    assert twin.targets.name == "one_hot" and twin.members == 1 and twin.transforms == ()
    assert replace(twin, targets=small().targets, name=small().name, about=small().about) == small()
    data = load_data("digits", sizes=small().data.sizes)
    for split in (Split.TRAIN, Split.VALIDATION):
        found = distances.read(run / "vanilla" / "robustness" / "ddn" / f"{split.value}.safetensors")
        found.check(data, split, "mine")
        assert torch.equal(found.index, data[split].index) and bool((found.distance > 0).all())
    path = json.loads((run / "targets.json").read_text())
    assert len(path["epsilon"]) == 3 + 1 and all(len(row) == 4 for row in path["epsilon"])
    assert path["epsilon"][0] == [0.0] * 4 and max(path["epsilon"][-1]) > 0
    for p, e in zip(path["p_true"][-1], path["epsilon"][-1], strict=True):
        assert e == pytest.approx((p - 1) * 10 / (1 - 10))  # Eq. 4
    assert json.loads((run / "levels.json").read_text())["from"] == "vanilla"


def test_levels_are_equally_large(run: Path) -> None:
    """The k-th smallest of n distances has level floor(k·R/n)."""
    held = policy_of(run)
    found = distances.read(run / "vanilla" / "robustness" / "ddn" / "train.safetensors")
    order = sorted(range(60), key=lambda i: (found.distance[i].item(), i))
    for rank, i in enumerate(order):
        assert held["train"][found.index[i]].item() == rank * 4 // 60
    assert int((held["train"] >= 0).sum()) == 60, "an index that is no training item has level −1"
    assert torch.bincount(held["validation"]).tolist() == [10] * 4


def test_p_true_and_epsilon_follow_algorithm_1(run: Path, tmp_path: Path) -> None:
    """The pseudo-code's loop over the kept validation predictions gives the same soft labels."""
    train(small(), tmp_path / "kept", replace(QUIET, keep_epochs=True, levels=run))
    held = policy_of(tmp_path / "kept")
    assert torch.equal(held["trajectory"], policy_of(run)["trajectory"])
    from calibrant import files

    soft = [1.0] * 4
    for epoch in (1, 2, 3):
        p = files.read(tmp_path / "kept" / "epochs" / f"validation-{epoch:05d}.npz")
        assert p.logits is not None
        for r in range(4):
            confidence = accuracy = count = 0.0
            for i in range(p.n):
                if held["validation"][i] == r:
                    probs = torch.softmax(p.logits[i].double(), -1).tolist()
                    confidence += max(probs)
                    accuracy += probs.index(max(probs)) == int(p.labels[i])
                    count += 1
            soft[r] = min(1.0, max(1 / 10 + 1e-3, soft[r] - 0.5 * (confidence / count - accuracy / count)))
        assert held["trajectory"][epoch].tolist() == pytest.approx(soft, abs=1e-9)


def test_a_finished_run_measures_nothing_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = {p: p.stat().st_mtime_ns for p in run.rglob("*.safetensors")}
    monkeypatch.setattr(distances, "robustness", lambda *a, **k: pytest.fail("attacked again"))
    train(small(), run, QUIET)
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*.safetensors")} == stamps


def test_on_the_fly_levels_are_measured_on_the_network_in_training(run: Path, tmp_path: Path) -> None:
    recipe = small("targets.refresh_after=[2]")
    train(recipe, tmp_path / "fly", replace(QUIET, levels=run / "vanilla" / "robustness" / "ddn", keep_weights=3))
    held = policy_of(tmp_path / "fly")
    stored = tmp_path / "fly" / "robustness" / "epoch-00002" / "ddn"
    data = load_data("digits", sizes=recipe.data.sizes)
    found = [distances.read(stored / f"{s}.safetensors") for s in ("train", "validation")]
    expected = levels_of(found[0], found[1], data, 4)
    assert torch.equal(held["train"], expected.train) and torch.equal(held["validation"], expected.validation)
    assert not torch.equal(held["train"], policy_of(run)["train"])
    # the attacked weights are those after two epochs, not the last ones
    from calibrant.attacks.networks import weights_hash
    from calibrant.training.epochs import kept_weights

    network = load(tmp_path / "fly").members[0]
    network.load_state_dict(kept_weights(tmp_path / "fly")[2])
    assert found[0].network == weights_hash(network) != weights_hash(load(tmp_path / "fly").members[0])


def test_of_ensemble_learns_from_the_pooled_prediction(run: Path, tmp_path: Path) -> None:
    """The members share their soft labels, and the gap is that of their mean probability (AR §5.3)."""
    from calibrant import files

    train(small("members=3"), tmp_path / "of", replace(QUIET, levels=run, keep_epochs=True))
    held = policy_of(tmp_path / "of")
    first = files.read(tmp_path / "of" / "epochs" / "validation-00001.npz")
    assert first.logits is not None and first.logits.shape == (3, 40, 10)
    confidence, predicted = pool(first.logits).exp().max(-1)
    for r in range(4):
        mine = held["validation"] == r
        gap = (confidence[mine].mean() - (predicted == first.labels)[mine].double().mean()).item()
        assert held["trajectory"][1, r].item() == pytest.approx(min(1.0, 1 - 0.5 * gap))
    alone = policy_of(run)["trajectory"]
    assert not torch.equal(held["trajectory"], alone)


# -- what can go wrong -----------------------------------------------------------------------------------------------


def refused(recipe: Recipe, out: Path, levels: Path | None) -> str:
    """The message of a training that is refused before anything is written."""
    with pytest.raises((InputError, FileError)) as caught:
        train(recipe, out, replace(QUIET, levels=levels))
    assert not out.exists()
    return str(caught.value)


def changed_distances(run: Path, folder: Path, **changes: Any) -> Path:
    """A folder with the distances of the run's twin, those of the validation part changed."""
    folder.mkdir()
    for split, change in (("train", {}), ("validation", changes)):
        found = distances.read(run / "vanilla" / "robustness" / "ddn" / f"{split}.safetensors")
        distances.write(folder / f"{split}.safetensors", replace(found, **change))
    return folder


def test_distances_of_other_items_are_refused(run: Path, tmp_path: Path) -> None:
    out, stored = tmp_path / "out", run / "vanilla" / "robustness" / "ddn"
    assert "another seed or other sizes" in refused(small("data.seed=1"), out, stored)
    said = refused(small("data.seed=1"), out, run)
    assert "was trained on digits (seed 0" in said and "(seed 1" in said
    assert "neither a run nor" in refused(small(), out, tmp_path / "nowhere")
    folder = changed_distances(run, tmp_path / "folder")
    shutil.copy(stored / "train.safetensors", folder / "validation.safetensors")
    said = refused(small(), out, folder)
    assert "the validation part of digits, but of the train part of digits" in said
    (folder / "validation.safetensors").write_bytes((stored / "validation.safetensors").read_bytes()[:-8])
    assert "truncated" in refused(small(), out, folder)
    (folder / "validation.safetensors").unlink()
    said = refused(small(), out, folder)
    assert "validation.safetensors is missing" in said and "--split validation" in said


def test_distances_of_another_ruler_are_refused(run: Path, tmp_path: Path) -> None:
    """A recipe that names another ruler would write that into its records."""
    stored = run / "vanilla" / "robustness" / "ddn"
    said = refused(small("targets.ruler=cw"), tmp_path / "a", stored)
    assert "train.safetensors was measured by ddn, and this recipe's ruler is cw; add --set targets.ruler=ddn" in said
    train(small("epochs=1"), tmp_path / "b", replace(QUIET, levels=stored))
    for name in ("levels.json", "targets.json"):
        assert json.loads((tmp_path / "b" / name).read_text())["ruler"] == "ddn"


@pytest.mark.parametrize(
    ("changed", "says"), [({"network": "another"}, "two networks"), ({"edition": 8}, "two editions of ddn")]
)
def test_distances_of_both_parts_are_of_one_network_and_edition(
    changed: dict[str, Any], says: str, run: Path, tmp_path: Path
) -> None:
    said = refused(small(), tmp_path / "r", changed_distances(run, tmp_path / "mixed", **changed))
    assert f"are of {says}" in said and "--split train,validation" in said


def test_distances_of_an_earlier_edition_are_measured_again(run: Path, tmp_path: Path) -> None:
    members, data = load(run / "vanilla").members, load_data("digits", sizes=small().data.sizes)
    fresh = distances.load_or_measure(members, data, "test", tmp_path, ruler="ddn")
    path = tmp_path / "ddn" / "test.safetensors"
    for edition in (fresh.edition, fresh.edition - 1):
        distances.write(path, replace(fresh, distance=2 * fresh.distance, edition=edition))
        found = distances.load_or_measure(members, data, "test", tmp_path, ruler="ddn")
        kept = 2.0 if edition == fresh.edition else 1.0
        assert torch.equal(found.distance, kept * fresh.distance)
    assert distances.read(path).edition == fresh.edition


def test_chunks_of_earlier_settings_are_not_reused(run: Path, tmp_path: Path) -> None:
    """A measurement that was killed before the ruler's defaults changed starts again, and its chunks are removed."""
    members, data = load(run / "vanilla").members, load_data("digits", sizes=small().data.sizes)
    weights = distances.weights_hash(members[0])
    for former in (f"test.{weights[:8]}.parts", f"test.{weights[:8]}-00000000.parts"):
        left = tmp_path / "ddn" / former
        left.mkdir(parents=True)
        (left / "robustness.json").write_text(
            json.dumps({"chunk": 256, "model": weights, "settings": {"iterations": 9}})
        )
    distances.load_or_measure(members, data, "test", tmp_path, ruler="ddn")
    assert [path.name for path in (tmp_path / "ddn").iterdir()] == ["test.safetensors"]


def test_items_without_another_prediction_are_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their distance is infinite, so they count as the most robust."""
    found = distances.read(run / "vanilla" / "robustness" / "ddn" / "validation.safetensors")
    far = torch.where(torch.arange(40) < 7, torch.inf, found.distance)
    folder = changed_distances(run, tmp_path / "far", distance=far)
    train(small("epochs=1"), tmp_path / "r", How(device="cpu", levels=folder))
    places = ", ".join(map(str, found.index[:5].tolist()))
    said = capsys.readouterr().err
    assert f"ddn found no other prediction for 7 of 40 validation items (places {places}, …)" in said
    assert "train items" not in said


def test_levels_are_refused_for_targets_without_levels(tmp_path: Path) -> None:
    said = refused(read("digits/focal"), tmp_path / "r", tmp_path)
    assert "--levels is for targets that need robustness levels" in said


def test_an_item_without_a_level_is_named(tmp_path: Path) -> None:
    from calibrant.errors import DivergedError

    data = load_data("digits", sizes=small().data.sizes)

    def holes(members: object, epoch: int) -> Levels:
        level = torch.full((int(data[Split.TRAIN].index.max()) + 1,), -1)
        level[data[Split.TRAIN].index[1:]] = torch.arange(59) % 4
        return Levels(level, torch.arange(40) % 4)

    with pytest.raises(DivergedError, match=rf"\b{int(data[Split.TRAIN].index[0])}\b"):
        train(small(), tmp_path / "r", replace(QUIET, refresh=holes))


def test_the_twin_of_an_ensemble_with_mixup_is_one_plain_network() -> None:
    twin = vanilla(read("ar-adals/cifar10_of_ensemble", ["transforms=['mixup']"]))
    assert (twin.members, twin.targets.name, twin.transforms) == (1, "one_hot", ())
    assert twin.network == read("ar/cifar10_resnet29").network


def test_pooled_members_are_attacked_as_one() -> None:
    members = [nn.Linear(2, 3), nn.Linear(2, 3)]
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([m(x).softmax(-1) for m in members]).mean(0)
    torch.testing.assert_close(distances.Pooled(members)(x).exp(), expected)


def test_the_path_in_a_record_of_levels_is_never_opened(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files outside a run are read only where the user says they are."""
    here = tmp_path / "here"
    shutil.copytree(run, here / "one")
    monkeypatch.chdir(here)
    words = [w for s in SMALL for w in ("--set", s)] + ["--device", "cpu"]
    train(small(), "[/two]", replace(QUIET, levels="one"))
    here.rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    again = ["train", "ar-adals/digits", "-o", "there/[/two]", *words]
    assert cli(again) == 0
    said = "no audit beside vanilla: the levels came from ../../one/vanilla, relative to there/[/two]"
    assert said in capsys.readouterr().err
    assert cli([*again, "--levels", "there/one"]) == 0
    shown = capsys.readouterr()
    assert "vanilla" in shown.out and f"{Path('[/two]') / 'report.html'}" in shown.out and "no audit" not in shown.err
    train(vanilla(small("seed=7")), tmp_path / "other", QUIET)  # another network
    assert cli([*again, "--levels", "other"]) == 2
    assert "was started with other levels (from ../../one/vanilla" in capsys.readouterr().err


def test_distances_of_a_read_only_run_are_stored_in_the_new_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = os.access
    closed = tmp_path / "closed"
    shutil.copytree(run / "vanilla", closed)

    def access(path: str | Path, mode: int) -> bool:  # root may everything
        return not (mode & os.W_OK and closed in (Path(path), *Path(path).parents)) and allowed(path, mode)

    monkeypatch.setattr(os, "access", access)
    assert "no permission to write in" in refused(small(), closed / "r", None)
    words = [w for s in (*SMALL, "epochs=1") for w in ("--set", s)] + ["--levels", str(closed), "--device", "cpu"]
    (closed / "robustness" / "ddn" / "test.safetensors").write_text("junk")  # the audit wants it, and cannot mend it
    assert cli(["train", "ar-adals/digits", "-o", str(tmp_path / "kept"), *words]) == 0
    assert (tmp_path / "kept" / "report.html").is_file(), "audited, with distances of its own keeping"
    assert (tmp_path / "kept" / "robustness" / "vanilla" / "ddn" / "test.safetensors").is_file()
    assert not (tmp_path / "kept" / "robustness" / "vanilla" / "ddn" / "train.safetensors").is_file(), "they are there"
    stale, path = tmp_path / "train.safetensors", closed / "robustness" / "ddn" / "train.safetensors"
    distances.write(stale, replace(distances.read(path), edition=0))
    shutil.copy(stale, path)
    train(small("epochs=1"), tmp_path / "again", replace(QUIET, levels=closed))
    again = tmp_path / "again" / "robustness" / "vanilla" / "ddn" / "train.safetensors"
    first = distances.read(run / "vanilla" / "robustness" / "ddn" / "train.safetensors")
    assert torch.equal(distances.read(again).distance, first.distance)


def test_a_given_run_called_vanilla_is_not_the_twin(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run / "vanilla", "vanilla")
    words = [w for s in (*SMALL, "epochs=1") for w in ("--set", s)] + ["--levels", "vanilla", "--device", "cpu"]
    assert cli(["train", "ar-adals/digits", "-o", "two", *words]) == 0
    assert json.loads(Path("two/levels.json").read_text())["from"] == "../vanilla" and Path("two/report.html").is_file()


def test_a_callers_own_parts_are_not_cut_by_a_recipe(tmp_path: Path) -> None:
    part = load_data("digits")["train"]
    mine = TensorDataset(part.x[:200], part.y[:200])

    def sizes() -> dict[str, int]:
        return dict(json.loads((tmp_path / "r" / "data.json").read_text())["sizes"])

    train(small("epochs=1"), tmp_path / "r", QUIET, {"train": mine, "test": mine})
    assert sizes()["test"] == 200 and sizes()["train"] == 200 - 40 - 20
    fewer = TensorDataset(part.x[:150], part.y[:150])
    with pytest.raises(InputError, match="was started with other data .train 140, now 90.;"):
        train(small("epochs=1"), tmp_path / "r", QUIET, {"train": fewer, "test": mine})
    train(small("epochs=1"), tmp_path / "r", QUIET, {"train": mine, "test": fewer})  # judged on other items
    assert sizes()["test"] == 150
