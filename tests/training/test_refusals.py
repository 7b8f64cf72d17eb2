"""A training that cannot work is refused before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import TensorDataset

from calibrant.data import Batches, load
from calibrant.errors import CalibrantError, DivergedError, InputError
from calibrant.training import How, Recipe, read, select, train
from calibrant.training import load as load_run
from calibrant.training.components import components, known_values
from calibrant.training.networks import networks
from calibrant.types import Split

QUIET = How(device="cpu", quiet=True)


def small(*settings: str) -> Recipe:
    return read("digits/cross_entropy", ["epochs=2", "network.hidden=[32]", *settings])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["penalties=['ranking']", "transforms=['mixup']"], "'ranking' needs each item's label, and mixup mixes"),
        (["penalties=['mmce']", "transforms=['cutmix']"], "'mmce' needs each item's label"),
        (["engine=graph"], "needs a CUDA device"),
        (["network=timm:nothing"], "timm"),
        (["transforms=[{name='ccat', attack={name='pgd', itertions=3}}]"], "ccat|attack.iterations"),
        (["data.sizes={validation=0}"], "no validation part.*sizes={'validation': N}"),
        (["data.sizes={train=1}"], "training part has 1 item"),
        (["network.dropout=1.5"], "dropout is 1.5; it must be a rate"),
        (["network.act=relu6"], "act='relu6' must be a layer's class"),
        (["network.hidden=200"], "'mlp' cannot be made with hidden=200"),
        (["network.hidden=[-3]"], "'mlp' cannot be made with hidden"),
        (["network=unet"], "'unet' cannot read digits .1×8×8.: .*too small"),
        (["network=text_cnn"], "'text_cnn' cannot read digits"),
        (["loss.class_weights=[1.0, 2.0]"], "2 class weights for 10 classes"),
        (["loss=fokal"], "unknown loss 'fokal'; did you mean 'focal'"),
        (["loss={name='focal', gama=1.0}"], "'loss.gama'; did you mean 'loss.gamma'"),
        (["loss={name='focal', gamma=nan}"], "loss.gamma=nan must be a number"),
        (["loss={name='inverse_focal', gamma=inf}"], "gamma must be 0 or more"),
        (["penalties=[{name='mmce', width=0.0}]"], "width must be positive"),
        (["penalties=[{name='entropy', weight='high'}]"], "penalties.0.weight='high' must be a number"),
        (["loss={name='focal', steps=[[1.0]]}"], "loss.steps.0=.* must be a list of 2"),
        (["loss.class_weights='often'"], "loss.class_weights='often' must be a list"),
        (["loss.class_weights=[1,1,1,1,1,1,1,1,1,-1]"], "class weights must be 0 or more"),
        (["targets.epsilon=0.1"], "targets 'one_hot' has no settings"),
        (["targets={name='adals', classes=3}"], "unknown key 'targets.classes'"),
        (["transforms=[{name='ccat', rho=-1}]"], "rho 0 or more"),
        (["transforms=[{name='ccat', attack=3}]"], "transforms.0.attack=3 must be a name"),
        (["transforms=[{name='ccat', attack={alpha='a'}}]"], "transforms.0.attack.alpha='a' must be a number"),
        (["schedule={name='multistep', milestones=[nan]}"], "schedule.milestones.0=nan must be a number"),
        (["targets={name='ar_adals', ruler='linf'}"], "targets.ruler='linf' is unknown; use 'ddn' or 'cw'"),
        (["targets={name='ar_adals', levels='ten'}"], "targets.levels='ten' must be a whole number"),
        (["targets={name='ar_adals', levels=2.5}"], "targets.levels=2.5 must be a whole number"),
        (["targets={name='ar_adals', refresh_after=3}"], "targets.refresh_after=3 must be a list"),
        (
            ["targets={name='ar_adals', refresh_after=['a']}"],
            "targets.refresh_after.0='a' must be a whole number",
        ),
        (["targets={name='ar_adals', refresh_after=[-1]}"], "refresh_after lists numbers of finished epochs"),
        (["targets={name='ar_adals', refresh_after=[1, 2]}"], r"after is .1, 2., but the run ends after 2 .*after=.1."),
        (
            ["targets={name='ar_adals', levels=999999}"],
            "levels of .* train items; lower targets.levels, or train on more",
        ),
    ],
)
def test_what_cannot_train_leaves_nothing_behind(tmp_path: Path, settings: list[str], says: str) -> None:
    with pytest.raises(CalibrantError, match=says):
        train(small(*settings), tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", [Split.TRAIN, Split.VALIDATION])
def test_a_label_of_no_class_is_seen_before_the_first_step(tmp_path: Path, split: Split) -> None:
    data = load("digits")
    y = data[split].y.clone()
    y[3] = 10
    wrong = replace(data, splits={**data.splits, split: replace(data[split], y=y)})
    says = rf"the {split} part of digits has the label 10, but its 10 classes are 0 … 9"
    with pytest.raises(InputError, match=says):
        train(small(), tmp_path / "run", QUIET, wrong)
    assert not (tmp_path / "run").exists()


def test_the_last_point_of_a_grid_is_judged_before_the_first_one_trains(tmp_path: Path) -> None:
    grid = "selection={grid={'targets.epsilon'=[0.1, 2.0]}}"
    with pytest.raises(InputError, match="epsilon"):
        select(small("targets=smoothing", grid), tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("axis", "said"), [("'targets.refresh_after'=[[], [99]]", "after 99 levels"), ("'targets.levels'=[2, 999]", "999")]
)
def test_levels_of_the_last_point_are_checked_first_too(tmp_path: Path, axis: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        select(small("targets=ar_adals", f"selection={{grid={{{axis}}}}}"), tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_checkpoint_may_be_restarted_with_other_settings(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="no checkpoint was written yet"):
        train(small("optimiser={name='sgd', lr=1e30}"), tmp_path / "run", QUIET)
    train(small(), tmp_path / "run", QUIET)
    assert load_run(tmp_path / "run").recipe == small()
    with pytest.raises(InputError, match="optimiser"):
        train(small("optimiser.lr=1"), tmp_path / "run", QUIET)


def test_an_own_dataset_is_accepted(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    mine = TensorDataset(torch.randn(90, 6, generator=rng), torch.arange(90) % 3)
    made = train(small("data.seed=4"), tmp_path / "run", QUIET, data=mine)
    assert made["metrics"]["test"]["n"] == 18 and load_run(tmp_path / "run").shape == (6,)


def test_pixels_outside_the_bounds_are_refused_before_training(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    mine = TensorDataset(torch.randn(90, 6, generator=rng), torch.arange(90) % 3)
    recipe = small("targets={name='ar_adals', levels=2}")
    with pytest.raises(
        InputError, match=r"of the train part of TensorDataset reach from -.*outside the bounds \[0, 1\]"
    ):
        train(recipe, tmp_path / "run", QUIET, data=mine)
    words = TensorDataset(torch.randint(9, (90, 6), generator=rng), torch.arange(90) % 3)
    with pytest.raises(InputError, match="robustness needs images held in memory|cannot read"):
        train(recipe, tmp_path / "run", QUIET, data=words)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_images_is_trained_on_by_worker_processes(tmp_path: Path) -> None:
    """The same pixels as PNG files and as arrays end in the same weights."""
    data, folder = load("digits", sizes={"train": 120, "validation": 40, "calibration": 0, "test": 40}), tmp_path / "x"
    for split in ("train", "validation", "test"):
        order = data[split].y.argsort(stable=True)
        for place, i in enumerate(order.tolist()):
            to = folder / ("val" if split == "validation" else split) / str(int(data[split].y[i]))
            to.mkdir(parents=True, exist_ok=True)
            Image.fromarray(data[split].x[i, 0].numpy()).save(to / f"{place:03}.png")
    zero = "data.sizes={calibration=0}"
    recipe = small(f"data.name='{folder}'", "data.shape=[1, 8, 8]", zero, "batch=60")
    train(recipe, tmp_path / "files", QUIET)
    images = load(str(folder), shape=(1, 8, 8), sizes={"calibration": 0})
    assert Batches(images["train"], 60).workers > 0
    held = {
        split: replace(part, x=torch.cat([x for x, _, _ in Batches(part, 500)]).mul(255).round().byte(), items=None)
        for split, part in images.splits.items()
    }
    train(small(zero, "batch=60"), tmp_path / "arrays", QUIET, data=replace(images, splits=held))
    a, b = (load_run(tmp_path / name).members[0].state_dict() for name in ("files", "arrays"))
    assert all(torch.equal(v, b[k]) for k, v in a.items())
    assert load_run(tmp_path / "files").classes == tuple(str(i) for i in range(10))


def test_ccat_by_the_recipe_alone(tmp_path: Path) -> None:
    """Half of a batch moves by at most ε, its targets move towards uniform, and the run is reproducible."""
    recipe = read("digits/ccat", ["epochs=1", "network.hidden=[16]", "transforms.0.attack={name='pgd', iterations=2}"])
    runs = [train(recipe, tmp_path / name, QUIET)["metrics"] for name in ("a", "b")]
    assert runs[0] == runs[1]
    a, b = (load_run(tmp_path / name).members[0].state_dict() for name in ("a", "b"))
    assert all(torch.equal(v, b[k]) for k, v in a.items())
    data = load("digits")
    [network] = networks(recipe, data)
    [ccat] = components(recipe, known_values(data)).transforms
    x, y, index = next(iter(Batches(data["train"], 32, mean=data.mean, std=data.std)))
    q = F.one_hot(y, 10).float()
    moved, soft = ccat(network, x, q, index, torch.Generator().manual_seed(1))
    other, _ = ccat(network, x, q, index, torch.Generator().manual_seed(2))
    assert torch.equal(moved[:16], x[:16]) and torch.equal(soft[:16], q[:16])
    distance = (moved - x)[16:].abs().flatten(1).amax(1) * data.std[0]
    assert 0 < distance.max() <= 0.03 + 1e-6 and not torch.equal(moved, other)
    assert (soft[16:].amax(1) < 1).all() and torch.allclose(soft.sum(1), torch.ones(32))


def changed(place: tuple[int, ...], value: float) -> torch.Tensor:
    x = torch.rand(60, 1, 8, 8)
    x[place] = value
    return x


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ((changed((7, 0, 2, 2), float("nan")), torch.arange(60) % 3), r"item 7 of arrays \(.*\) has NaN or infinity"),
        ([(torch.rand(1, 8 + i % 2, 8), i % 3) for i in range(60)], "must have one shape, but they differ in size"),
        ((torch.rand(60), torch.arange(60) % 3), "but they are single numbers"),
        (
            {s: (torch.rand(60, 1, h, 8), torch.arange(60) % 3) for s, h in (("train", 8), ("test", 9))},
            r"are \[1, 9, 8\] in the test part and \[1, 8, 8\] in the training part",
        ),
    ],
)
def test_inputs_that_cannot_be_used_are_found_before_training(tmp_path: Path, data: Any, says: str) -> None:
    for given in (data, load(data)):
        with pytest.raises(InputError, match=says):
            train(small(), tmp_path / "run", QUIET, given)
    assert not (tmp_path / "run").exists()


class Pair(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return (super().forward(x.flatten(1)),)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(10)), "lazy layers without weights"),
        (lambda: Pair(64, 10), "returns a tuple; training needs the tensor of its logits"),
        (lambda: 1 / 0, "called with no arguments, failed with ZeroDivisionError: division by zero"),
        (lambda: 3, "not a torch.nn.Module"),
        (torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)), "returns shape"),
    ],
)
def test_own_networks_that_cannot_be_used(tmp_path: Path, network: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        train(small(), tmp_path / "run", QUIET, network=network)
    assert not (tmp_path / "run").exists()


def test_a_base_is_found_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text('base = "digits/focal"\nseed = 7\n')
    (tmp_path / "second.toml").write_text('base = "first.toml"\nloss = { name = "focal", gamma = 1 }\n')
    recipe = read(tmp_path / "second.toml")
    assert recipe.seed == 7 and recipe.loss.options["gamma"] == 1
    (tmp_path / "first.toml").write_text('base = "second.toml"\n')
    with pytest.raises(InputError, match=r"second\.toml is its own base"):
        read(tmp_path / "second.toml")
    (tmp_path / "first.toml").write_text("base = [1]\n")
    with pytest.raises(InputError, match=r"first\.toml: key 'base' is \[1\]"):
        read(tmp_path / "second.toml")
    (tmp_path / "first.toml").write_text('base = "digits/focl"\n')
    with pytest.raises(CalibrantError, match=r"first\.toml: unknown recipe 'digits/focl'; did you mean 'digits/focal'"):
        read(tmp_path / "second.toml")
